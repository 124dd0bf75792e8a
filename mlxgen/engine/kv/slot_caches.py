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

from functools import cached_property
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from .layers import LayerCache, fill, narrowed, owned

GROWTH = 256  # places that are added at a time
SLACK = 256  # places of a ring beyond its window: how far a row can go back, or ahead in one run

SlotLayer: TypeAlias = Any  # SlotKeys, SlotState, or mlx-lm's CacheList of these
States: TypeAlias = list[mx.array | None]


class Pass:
    """Where the tokens of one forward pass go; shared by the caches of all layers.

    Consecutive slots from ``first`` on get ``count`` tokens each, from their ``positions`` on.
    Those of which ``runs`` is false only get padding: it goes behind their tokens, where nothing
    sees it, and leaves their states as they are. ``whole``: these are all the slots in use, whose
    number is ``held``. ``even``: all positions are the same.
    """

    def __init__(
        self, first: int, positions: list[int], runs: list[bool], *, held: int, count: int
    ) -> None:
        self.slots = slice(first, first + len(positions))
        self.positions = positions
        self.runs = runs
        self.count = count
        self.end = max(positions) + count  # one more than the highest position
        self.whole = len(positions) == held
        self.even = min(positions) == max(positions)
        self._places: dict[tuple[int | None, int], tuple[mx.array, ...]] = {}
        self._masks: dict[tuple[int | None, int | None], mx.array] = {}

    @cached_property
    def offset(self) -> mx.array | int:
        """The number of tokens before these, as rotary embeddings need it."""
        one = self.count > 1 and len(self.positions) == 1
        return self.positions[0] if one else mx.array(self.positions, mx.int32)

    @cached_property
    def offset_after(self) -> mx.array | int:
        """The number of tokens once these are stored."""
        return self.offset + self.count

    @cached_property
    def _runs(self) -> mx.array:
        return mx.array(self.runs)

    def chosen(self, new: mx.array, old: mx.array) -> mx.array:
        """The ``new`` states of the slots that run, and the ``old`` ones of the others."""
        return mx.where(self._runs.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    @cached_property
    def _own(self) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        """The position of each token [slots, count]."""
        return np.add.outer(self.positions, np.arange(self.count)).astype(np.int32)

    def places(self, ring: int | None, heads: int) -> tuple[mx.array, ...]:
        """Where each token goes, as slots, heads and places [slots, heads, count]."""
        if (ring, heads) not in self._places:
            own = self._own[:, None] if ring is None else self._own[:, None] % ring
            slots = np.arange(self.slots.start, self.slots.stop)[:, None, None]
            indexes = np.broadcast_arrays(slots, np.arange(heads)[:, None], own)
            self._places[ring, heads] = tuple(mx.array(each.astype(np.int32)) for each in indexes)
        return self._places[ring, heads]

    def mask(self, window: int | None, ring: int | None) -> mx.array:
        """Which places each token sees: bool [slots, 1, count, places].

        Place s holds the latest position up to the token's own that falls there.
        """
        if (window, ring) not in self._masks:
            places = mx.arange(self.end if ring is None else min(self.end, ring))
            own = mx.array(self._own[:, None, :, None])
            ago = own - places if ring is None else (own - places) % ring
            seen = places <= own if ring is None else ago <= own
            self._masks[window, ring] = seen if window is None else seen & (ago < window)
        return self._masks[window, ring]


class SlotKeys:
    """Keys and values of an attention layer: [slots, heads, places, width].

    They are ``None`` while no slot is in use.
    """

    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self.ring = window + SLACK if window is not None else None
        self.keys: Any = None
        self.values: Any = None
        self.offset: mx.array | int = 0
        self._pass: Pass | None = None

    # mlx-lm's convention

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Store the keys and values of a pass; return those that its tokens may look at."""
        step = self._pass
        assert step is not None
        self.keys = self._store(step, self.keys, keys)
        self.values = self._store(step, self.values, values)
        self.offset = step.offset_after
        return self._seen(step, self.keys), self._seen(step, self.values)

    def make_mask(
        self, n: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        """The attention mask of this pass; ``None`` if every token sees all places."""
        step = self._pass
        assert step is not None
        window = window_size or self.window
        alike = step.count == 1 and step.even
        if alike and not return_array and (window is None or step.end <= window):
            return None
        return step.mask(window, self.ring)

    def empty(self) -> bool:
        return self.keys is None

    # the slots

    def begin(self, step: Pass) -> None:
        """Prepare for a forward pass: ``step`` says where its tokens go."""
        self._pass = step
        self.offset = step.offset
        self._reserve(self.keys.shape[0], step.end)

    def end(self) -> None:
        """Note that the graph of the forward pass is built."""
        self._pass = None

    def put(self, slot: int, leaf: KVCache | RotatingKVCache, slots: int) -> None:
        """Copy one sequence's keys to ``slot``; makes room for ``slots`` sequences."""
        new = narrowed(leaf).keys_and_values()
        if self.keys is None:
            self.keys, self.values = (
                mx.zeros((slots, a.shape[1], 0, a.shape[3]), a.dtype) for a in new
            )
        self._reserve(slots, leaf.offset)
        count = new[0].shape[2]
        for places, part in self._pieces(leaf.offset - count, count):
            for held, array in zip((self.keys, self.values), new, strict=True):
                held[slot, :, places] = array[0, :, part]

    def get(self, slot: int, length: int, leaf: KVCache | RotatingKVCache) -> None:
        """Copy the first ``length`` tokens of a slot to an empty cache of one sequence."""
        row = (self.keys[slot : slot + 1], self.values[slot : slot + 1])
        if self.ring is None or self.window is None:
            fill(leaf, (tuple(owned(array[:, :, :length]) for array in row),), length)
        else:
            places = mx.arange(max(0, length - self.window), length) % self.ring
            fill(leaf, (tuple(mx.take(array, places, axis=2) for array in row),), length)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy what one slot holds to another."""
        end = length if self.ring is None else min(length, self.ring)
        for held in (self.keys, self.values):
            held[target, :, :end] = held[source, :, :end]

    def clear(self) -> None:
        """Free everything."""
        self.keys = self.values = None

    def arrays(self) -> list[mx.array]:
        return [] if self.keys is None else [self.keys, self.values]

    @property
    def places(self) -> int:
        """The places of each slot, of which a ring does not have more than it needs."""
        return self.keys.shape[2] if self.ring is None else 0

    def trim(self, slots: int, places: int) -> None:
        """Free what is beyond ``slots`` slots and ``places`` places."""
        room = self._room(places)
        if self.keys.shape[0] > slots or self.keys.shape[2] > room:
            self.keys = owned(self.keys[:slots, :, :room])
            self.values = owned(self.values[:slots, :, :room])

    def _room(self, places: int) -> int:
        room = -(-places // GROWTH) * GROWTH
        return room if self.ring is None else min(room, self.ring)

    def _reserve(self, slots: int, places: int) -> None:
        have, _, room, _ = self.keys.shape
        wanted = max(room, self._room(places))
        if slots > have or wanted > room:
            more = [(0, max(0, slots - have)), (0, 0), (0, wanted - room), (0, 0)]
            self.keys, self.values = mx.pad(self.keys, more), mx.pad(self.values, more)

    def _store(self, step: Pass, held: mx.array, new: mx.array) -> mx.array:
        if step.even:
            for places, part in self._pieces(step.positions[0], step.count):
                held[step.slots, :, places] = new[:, :, part]
        else:
            held[step.places(self.ring, held.shape[1])] = new
        return held

    def _seen(self, step: Pass, held: mx.array) -> mx.array:
        return held[step.slots, :, : step.end if self.ring is None else min(step.end, self.ring)]

    def _pieces(self, start: int, count: int) -> list[tuple[slice, slice]]:
        """The places of ``count`` positions from ``start`` on, and which of them these are; cut
        where the ring wraps around."""
        first = start if self.ring is None else start % self.ring
        if self.ring is None or first + count <= self.ring:
            return [(slice(first, first + count), slice(count))]
        cut = self.ring - first
        return [(slice(first, self.ring), slice(cut)), (slice(count - cut), slice(cut, count))]


class SlotState(ArraysCache):  # type: ignore[misc]
    """The states of a recurrent layer: arrays whose first axis is the slots.

    States are replaced, not updated in place. So those before the last pass can be kept, and a
    single token can be taken back.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._held: States = [None] * size
        self._before = self._held
        self._pass: Pass | None = None

    def begin(self, step: Pass) -> None:
        self._pass = step
        self.cache = list(self._held) if step.whole else _rows(self._held, step.slots)

    def end(self) -> None:
        step, new = self._pass, self.cache
        assert step is not None
        self._pass, self.cache = None, [None] * len(new)
        if not all(step.runs):
            pairs = zip(new, _rows(self._held, step.slots), strict=True)
            new = [a if a is None or b is None else step.chosen(a, b) for a, b in pairs]
        self._before = self._held
        self._held = new if step.whole else _replaced(self._held, step.slots, new)

    @property
    def slots(self) -> int:
        """The number of sequences held."""
        return next((a.shape[0] for a in self._held if a is not None), 0)

    def undo(self, slot: int) -> None:
        """Undo the last pass for one slot."""
        self.restore(slot, _rows(self._before, _only(slot)))

    def put(self, slot: int, leaf: ArraysCache, slots: int) -> None:
        """Append the state of one sequence as that of ``slot``, the last one."""
        assert slot == self.slots
        self._held = self._before = [
            new if old is None else mx.concatenate([old, new])
            for old, new in zip(self._held, leaf.cache, strict=True)
        ]

    def get(self, slot: int, length: int, leaf: ArraysCache) -> None:
        leaf.cache = self.copy_of(slot)

    def copy_of(self, slot: int) -> States:
        """The state of one slot, in arrays that keep no other buffer alive."""
        return [None if a is None else owned(a[slot : slot + 1]) for a in self._held]

    def restore(self, slot: int, state: States) -> None:
        """Restore a state that ``copy_of`` gave."""
        self._held = _replaced(self._held, _only(slot), state)

    def move(self, source: int, target: int, length: int) -> None:
        self.restore(target, _rows(self._held, _only(source)))

    def keep(self, slots: int) -> None:
        """Forget the slots after the first ones."""
        self._held = self._before = [None if a is None else a[:slots] for a in self._held]

    def clear(self) -> None:
        self._held = self._before = [None] * len(self._held)

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
    if type(layer) is RotatingKVCache and layer.keep == 0:
        return SlotKeys(window=layer.max_size)
    if type(layer) is ArraysCache:
        return SlotState(len(layer.cache))
    if type(layer) is CacheList:
        inner = [slot_layer(each) for each in layer.caches]
        return None if any(each is None for each in inner) else CacheList(*inner)
    return None
