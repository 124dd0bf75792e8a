"""Layer caches that hold many sequences side by side, each at a length of its own.

Owns the arrays of a batch, one cache for each layer, in the calling convention of mlx-lm's
models. Must never know which tokens they are, or who asks for them. Invariant: what a token
sees depends only on its sequence's own slot, up to the token's position.

A sequence has a *slot*, an index on the first axis, and its token at position p is at place p of
the third axis (p modulo the ring's size if a window slides). So sequences of different lengths
need no padding; going back costs nothing, as what is after a position is never seen and will be
overwritten; and a sequence joins or leaves without moving the others. mlx-lm's batch caches align
the sequences at their ends instead: there a place means the same for all, and a rewind of one
sequence has to roll its keys.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from .layers import LayerCache, cut, fill, keys_and_values, narrowed, owned
from .places import SLACK, Keys, Pair, Pass, Places
from .quantised import Quantisation, QuantisedKeys

SlotLayer: TypeAlias = Any  # SlotKeys, SlotState, or mlx-lm's CacheList of these
States: TypeAlias = list[mx.array | None]


class SlotKeys:
    """Keys and values of an attention layer; there are none while no slot is in use."""

    keys = Keys()

    def __init__(self, window: int | None = None, how: Quantisation | None = None) -> None:
        self.window = window
        self.ring = window + SLACK if window is not None else None
        self.places = Places(ring=self.ring) if how is None else how.places()
        self.offset: mx.array | int = 0
        self.step: Pass | None = None
        """Where the tokens of the pass go that is being built: the slots set it for all layers."""
        self._how = how

    # mlx-lm's convention

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Pair:
        """Store the keys and values of a pass; return those that its tokens may look at.

        Every layer of every token comes here, so what is the same for all layers is asked once.
        """
        step = self.step
        assert step is not None
        self.offset = step.offset_after
        places = self.places
        if not places.arrays:
            places.begin(step.rooms, keys, values, step.reach)
        if self._how is None:
            if self.ring is not None and step.count > SLACK:
                return self._run_long(step, keys, values)
            heads = keys.shape[1]
            found = step.where.get((self.ring, heads))
            goes, sees = step.find(self.ring, heads) if found is None else found
            all_keys, all_values = places.arrays
            all_keys[goes], all_values[goes] = keys, values
            return all_keys[sees], all_values[sees]
        places.store(step, keys, values)
        return self._how.seen(self, places, step.slots, step.end, step.count)

    def _run_long(self, step: Pass, keys: mx.array, values: mx.array) -> Pair:
        """Store a run of one slot that is longer than a ring can hold beside what its first tokens
        see; returns that, and the run, in order."""
        assert self.ring is not None
        before = self.places.run(step.slots, step.before(self.ring), step.start)
        new = keys, values
        seen = [mx.concatenate(list(pair), axis=2) for pair in zip(before, new, strict=True)]
        kept = min(step.count, self.ring)
        self.places.write(
            step.slots, step.end - kept, tuple([array[:, :, -kept:] for array in new])
        )
        return seen[0], seen[1]

    def make_mask(
        self, n: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """The attention mask of this pass; ``None`` if every token sees all places."""
        step = self.step
        assert step is not None
        window = window_size or self.window
        if step.even and not return_array and (window is None or step.end <= window):
            return None if step.count == 1 else "causal"
        return step.mask(window, self.ring)

    def empty(self) -> bool:
        return self.places.empty

    # the slots

    def put(self, slot: int, leaf: LayerCache, slots: int) -> None:
        """Copy one sequence's keys to ``slot``; makes room for ``slots`` sequences."""
        piece = cut(keys_and_values(narrowed(leaf)), 0, leaf.offset)
        if piece:
            self.places.put(slot, [piece], slots, leaf.offset - piece[0].shape[2])

    def get(self, slot: int, length: int, leaf: LayerCache) -> None:
        """Copy the first ``length`` tokens of a slot to an empty cache of one sequence."""
        start = 0 if self.window is None else max(0, length - self.window)
        fill(leaf, self.places.copy_of(slot, start, length), length)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy what one slot holds to another."""
        self.places.move(source, target, length)

    def clear(self) -> None:
        """Free everything."""
        self.places.arrays = []

    def arrays(self) -> list[mx.array]:
        return self.places.arrays


class SlotState(ArraysCache):  # type: ignore[misc]
    """The states of a recurrent layer: arrays whose first axis is the slots.

    States are replaced, not updated in place. So those before the last pass can be kept, and a
    single token can be taken back.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._held: States = [None] * size
        self._before = self._held
        self._slots = 0
        self._pass: Pass | None = None

    def begin(self, step: Pass) -> None:
        self._pass = step
        self.cache = list(self._held) if step.whole else _rows(self._held, step.slots)

    def end(self) -> None:
        step, new = self._pass, self.cache
        assert step is not None
        self._pass, self.cache = None, [None] * len(new)
        self._before = self._held
        if not step.whole or not all(step.runs):
            held = [
                mx.zeros((step.held, *b.shape[1:]), b.dtype) if a is None and b is not None else a
                for a, b in zip(self._held, new, strict=True)
            ]
            pairs = zip(new, _rows(held, step.slots), strict=True)
            new = [a if a is None or b is None else step.chosen(a, b) for a, b in pairs]
            new = _replaced(held, step.slots, new)
        self._held = new

    @property
    def slots(self) -> int:
        """The number of sequences held."""
        return next((a.shape[0] for a in self._held if a is not None), 0)

    def undo(self, slot: int) -> None:
        """Undo the last pass for one slot."""
        self.restore(slot, _rows(self._before, _only(slot)))

    def put(self, slot: int, leaf: ArraysCache, slots: int) -> None:
        """Copy the state of one sequence to ``slot``."""
        held = [
            mx.zeros((max(slot + 1, self._slots), *new.shape[1:]), new.dtype)
            if old is None and new is not None
            else old
            for old, new in zip(self._held, leaf.cache, strict=True)
        ]
        self._held = _replaced(held, _only(slot), leaf.cache)

    def get(self, slot: int, length: int, leaf: ArraysCache) -> None:
        leaf.cache = self.copy_of(slot)

    def copy_of(self, slot: int) -> States:
        """The state of one slot, in arrays that keep no other buffer alive."""
        return [None if a is None else owned(a[slot : slot + 1]) for a in self._held]

    def restore(self, slot: int, state: States | None) -> None:
        """Restore a state that ``copy_of`` gave, or that of a sequence without tokens."""
        state = [None] * len(self._held) if state is None else state
        rows = [
            mx.zeros_like(held[:1]) if new is None and held is not None else new
            for held, new in zip(self._held, state, strict=True)
        ]
        self._held = _replaced(self._held, _only(slot), rows)

    def move(self, source: int, target: int, length: int) -> None:
        self.restore(target, _rows(self._held, _only(source)))

    def keep(self, slots: int) -> None:
        """Have so many slots: forget those after the first ones, or begin new ones."""
        self._slots = slots
        held: States = []
        for array in self._held:
            if array is not None and array.shape[0] < slots:
                rest = [(0, slots - array.shape[0]), *[(0, 0)] * (array.ndim - 1)]
                array = mx.pad(array, rest)
            held.append(None if array is None else array[:slots])
        self._held = self._before = held

    def clear(self) -> None:
        self._held = self._before = [None] * len(self._held)
        self._slots = 0

    def arrays(self) -> list[mx.array]:
        return [a for a in self._held if a is not None]


def _only(slot: int) -> slice:
    return slice(slot, slot + 1)


def _rows(states: States, slots: slice) -> States:
    return [None if a is None else a[slots] for a in states]


def _replaced(states: States, slots: slice, rows: States) -> States:
    """The states with other ``rows`` in some slots."""
    changed: States = []
    for old, new in zip(states, rows, strict=True):
        if old is not None and new is not None:
            whole = mx.array(old)
            whole[slots] = new
            new = whole
        changed.append(new)
    return changed


def slot_layer(layer: LayerCache) -> SlotLayer | None:
    """The counterpart for many sequences of a cache for one; ``None`` if there is none."""
    if type(layer) is KVCache:
        return SlotKeys()
    if type(layer) is QuantisedKeys:
        return SlotKeys(how=layer.how)
    if type(layer) is RotatingKVCache and layer.keep == 0:
        return SlotKeys(window=layer.max_size)
    if type(layer) is ArraysCache:
        return SlotState(len(layer.cache))
    if type(layer) is CacheList:
        inner = [slot_layer(each) for each in layer.caches]
        return None if any(each is None for each in inner) else CacheList(*inner)
    return None
