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

from collections.abc import Sequence
from typing import Any, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from .layers import LayerCache, owned

GROWTH = 256  # places that are added at a time
SLACK = 256  # places of a ring beyond its window: how far a row can go back, or ahead in one run

SlotLayer: TypeAlias = Any  # SlotKeys, SlotState, or mlx-lm's CacheList of these


class Pass:
    """Where the tokens of one forward pass go; shared by the caches of all layers.

    Each of ``slots`` gets ``count`` tokens, from its position on. If ``count`` is 1, a slot may
    occur several times, with increasing positions. ``spread``: the slots are 0, 1, 2 ..., so
    nothing has to be gathered. ``whole``: they are all the slots in use, whose number is ``held``.
    """

    __slots__ = ("_at", "_masks", "_where", "count", "positions", "slots", "spread", "whole")

    def __init__(
        self, slots: list[int], positions: list[int], *, held: int, count: int = 1
    ) -> None:
        self.slots = slots
        self.positions = positions
        self.spread = slots == list(range(len(slots)))
        self.whole = self.spread and len(slots) == held
        self.count = count
        self._where: mx.array | None = None
        self._at: mx.array | None = None
        self._masks: dict[tuple[int | None, int | None], mx.array] = {}

    @property
    def where(self) -> mx.array:
        """The slots as an array [tokens]."""
        if self._where is None:
            self._where = mx.array(self.slots, mx.int32)
        return self._where

    @property
    def at(self) -> mx.array:
        """The positions as an array [tokens]."""
        if self._at is None:
            self._at = mx.array(self.positions, mx.int32)
        return self._at

    @property
    def offset(self) -> mx.array | int:
        """The number of tokens before these, as rotary embeddings need it."""
        return self.positions[0] if self.count > 1 and len(self.slots) == 1 else self.at

    @property
    def end(self) -> int:
        """One more than the highest position."""
        return max(self.positions) + self.count

    def mask(self, window: int | None, ring: int | None) -> mx.array:
        """Which places each token sees: bool [slots, 1, count, places].

        Place s holds the latest position up to the token's own that falls there.
        """
        known = self._masks.get((window, ring))
        if known is not None:
            return known
        places = mx.arange(self.end if ring is None else min(self.end, ring))
        own = self.at[:, None, None, None]
        if self.count > 1:
            own = own + mx.arange(self.count)[:, None]
        if ring is None:
            seen = places <= own
            if window is not None:
                seen = seen & (places > own - window)
        else:
            ago = (own - places) % ring
            seen = ago <= own
            if window is not None:
                seen = seen & (ago < window)
        self._masks[window, ring] = seen
        return seen


class SlotKeys:
    """Keys and values of an attention layer: [slots, heads, places, width]."""

    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self.ring = window + SLACK if window is not None else None
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset: mx.array | int = 0
        self._pass: Pass | None = None

    # mlx-lm's convention

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Store the keys and values of a pass; return those that its tokens may look at."""
        step = self._pass
        assert step is not None and self.keys is not None and self.values is not None
        end = step.end if self.ring is None else min(step.end, self.ring)
        self.keys = self._store(step, self.keys, keys)
        self.values = self._store(step, self.values, values)
        self.offset = step.offset + step.count
        if len(step.slots) == 1:
            slot = step.slots[0]
            return self.keys[slot : slot + 1, :, :end], self.values[slot : slot + 1, :, :end]
        if step.spread:
            count = len(step.slots)
            return self.keys[:count, :, :end], self.values[:count, :, :end]
        return (
            mx.take(self.keys, step.where, axis=0)[:, :, :end],
            mx.take(self.values, step.where, axis=0)[:, :, :end],
        )

    def make_mask(
        self, n: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        """The attention mask of this pass; ``None`` if every token sees all places."""
        step = self._pass
        assert step is not None
        window = window_size or self.window
        alike = step.count == 1 and min(step.positions) == step.end - 1
        if alike and not return_array and (window is None or step.end <= window):
            return None
        return step.mask(window, self.ring)

    def is_trimmable(self) -> bool:
        return False

    def empty(self) -> bool:
        return self.keys is None

    @property
    def nbytes(self) -> int:
        if self.keys is None or self.values is None:
            return 0
        return int(self.keys.nbytes + self.values.nbytes)

    # the slots

    def begin(self, step: Pass) -> None:
        """Prepare for a forward pass: ``step`` says where its tokens go."""
        assert self.keys is not None and self.values is not None
        self._pass = step
        self.offset = step.offset
        self._reserve(self.keys.shape[0], step.end)

    def end(self) -> None:
        """Note that the graph of the forward pass is built."""
        self._pass = None

    def put(self, slot: int, layer: KVCache | RotatingKVCache, slots: int) -> None:
        """Copy one sequence's keys to ``slot``; makes room for ``slots`` sequences."""
        keys, values = layer.keys, layer.values
        assert keys is not None and values is not None
        if isinstance(layer, RotatingKVCache):
            kept = layer.size()
            keys = layer._temporal_order(keys)[..., -kept:, :]
            values = layer._temporal_order(values)[..., -kept:, :]
        else:
            kept = layer.offset
            keys, values = keys[..., :kept, :], values[..., :kept, :]
        if self.keys is None or self.values is None:
            self.keys = mx.zeros((slots, keys.shape[1], 0, keys.shape[3]), keys.dtype)
            self.values = mx.zeros((slots, values.shape[1], 0, values.shape[3]), values.dtype)
        self._reserve(slots, layer.offset)
        start = layer.offset - kept
        for first, last in self._pieces(start, kept):
            place = first if self.ring is None else first % self.ring
            part = slice(first - start, last - start)
            self.keys[slot, :, place : place + last - first] = keys[0, :, part]
            self.values[slot, :, place : place + last - first] = values[0, :, part]

    def get(self, slot: int, length: int) -> KVCache | RotatingKVCache:
        """A copy of the first ``length`` tokens of a slot, as mlx-lm's cache of one sequence."""
        assert self.keys is not None and self.values is not None
        if self.window is None or self.ring is None:
            return first_tokens(self.keys, self.values, slot, length)
        kept = min(length, self.window)
        places = mx.arange(length - kept, length) % self.ring
        layer = RotatingKVCache(self.window)
        layer.keys = mx.take(self.keys[slot : slot + 1], places, axis=2)
        layer.values = mx.take(self.values[slot : slot + 1], places, axis=2)
        layer.offset, layer._idx = length, kept
        return layer

    def move(self, source: int, target: int, length: int) -> None:
        """Copy what one slot holds to another."""
        assert self.keys is not None and self.values is not None
        end = length if self.ring is None else min(length, self.ring)
        self.keys[target, :, :end] = self.keys[source, :, :end]
        self.values[target, :, :end] = self.values[source, :, :end]

    def clear(self) -> None:
        """Free everything."""
        self.keys = self.values = None

    def arrays(self) -> list[mx.array]:
        return [] if self.keys is None or self.values is None else [self.keys, self.values]

    def trim(self, slots: int, places: int) -> None:
        """Free what is beyond ``slots`` slots and ``places`` places."""
        assert self.keys is not None and self.values is not None
        room = self._room(places)
        if self.keys.shape[0] > slots or self.keys.shape[2] > room:
            self.keys = owned(self.keys[:slots, :, :room])
            self.values = owned(self.values[:slots, :, :room])

    def _room(self, places: int) -> int:
        room = -(-places // GROWTH) * GROWTH
        return room if self.ring is None else min(room, self.ring)

    def _reserve(self, slots: int, places: int) -> None:
        assert self.keys is not None and self.values is not None
        have, _, room, _ = self.keys.shape
        wanted = max(room, self._room(places))
        if slots > have or wanted > room:
            more = [(0, max(0, slots - have)), (0, 0), (0, wanted - room), (0, 0)]
            self.keys, self.values = mx.pad(self.keys, more), mx.pad(self.values, more)

    def _store(self, step: Pass, held: mx.array, new: mx.array) -> mx.array:
        slots, start = step.slots, step.positions[0]
        if len(slots) == 1 or (step.spread and min(step.positions) == max(step.positions)):
            for first, last in self._pieces(start, step.count):
                place = first if self.ring is None else first % self.ring
                held[slots[0] : slots[0] + len(slots), :, place : place + last - first] = new[
                    :, :, first - start : last - start
                ]
            return held
        at = step.at[:, None] + mx.arange(step.count)
        if self.ring is not None:
            at = at % self.ring
        if step.whole:  # along all rows at once, including those without a sequence
            spare = held.shape[0] - len(slots)
            if spare:
                at = mx.pad(at, [(0, spare), (0, 0)])
                new = mx.pad(new, [(0, spare), (0, 0), (0, 0), (0, 0)])
            return mx.put_along_axis(held, at[:, None, :, None], new, axis=2)
        held[step.where[:, None], :, at] = new.transpose(0, 2, 1, 3)
        return held

    def _pieces(self, start: int, count: int) -> list[tuple[int, int]]:
        """``count`` positions from ``start`` on, cut where the ring wraps around."""
        if self.ring is None or start % self.ring + count <= self.ring:
            return [(start, start + count)]
        cut = start - start % self.ring + self.ring
        return [(start, cut), (cut, start + count)]


class SlotState(ArraysCache):  # type: ignore[misc]
    """The states of a recurrent layer: arrays whose first axis is the slots.

    States are replaced, not updated in place. So those before the last pass can be kept, and a
    single token can be taken back.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._held: list[mx.array | None] = [None] * size
        self._before: list[mx.array | None] = self._held
        self._pass: Pass | None = None

    def begin(self, step: Pass) -> None:
        self._pass = step
        if step.whole:
            self.cache = list(self._held)
        else:
            self.cache = [None if a is None else a[step.where] for a in self._held]

    def end(self) -> None:
        step = self._pass
        assert step is not None
        self._before, self._pass = self._held, None
        if step.whole:
            self._held = self.cache
        else:
            self._held = [
                _replaced(old, step.where, new)
                for old, new in zip(self._before, self.cache, strict=True)
            ]
        self.cache = [None] * len(self._held)

    @property
    def slots(self) -> int:
        """The number of sequences held."""
        return next((a.shape[0] for a in self._held if a is not None), 0)

    def undo(self, slot: int) -> None:
        """Undo the last pass for one slot."""
        where = mx.array([slot])
        self._held = [
            None if new is None or old is None else _replaced(new, where, old[where])
            for new, old in zip(self._held, self._before, strict=True)
        ]

    def put(self, slot: int, layer: ArraysCache, slots: int) -> None:
        """Append the state of one sequence as that of ``slot``, the last one."""
        assert slot == self.slots
        self._held = [
            new if old is None else mx.concatenate([old, new])
            for old, new in zip(self._held, layer.cache, strict=True)
        ]
        self._before = self._held

    def get(self, slot: int, length: int) -> ArraysCache:
        layer = ArraysCache(len(self._held))
        layer.cache = self.copy_of(slot)
        return layer

    def copy_of(self, slot: int) -> list[mx.array | None]:
        """The state of one slot, in arrays that keep no other buffer alive."""
        return [None if a is None else owned(a[slot : slot + 1]) for a in self._held]

    def restore(self, slot: int, state: Sequence[mx.array | None]) -> None:
        """Restore a state that ``copy_of`` gave."""
        where = mx.array([slot])
        self._held = [
            old if old is None or new is None else _replaced(old, where, new)
            for old, new in zip(self._held, state, strict=True)
        ]

    def move(self, source: int, target: int, length: int) -> None:
        where = mx.array([target])
        self._held = [
            None if a is None else _replaced(a, where, a[source : source + 1]) for a in self._held
        ]

    def drop_last(self) -> None:
        """Forget the last slot."""
        self._held = [None if a is None else a[:-1] for a in self._held]
        self._before = self._held

    def clear(self) -> None:
        self._held = [None] * len(self._held)
        self._before = self._held

    def arrays(self) -> list[mx.array]:
        return [a for a in self._held if a is not None]

    @property
    def nbytes(self) -> int:
        return sum(int(a.nbytes) for a in self._held if a is not None)


def first_tokens(keys: mx.array, values: mx.array, row: int, length: int) -> KVCache:
    """The first ``length`` places of a row, as mlx-lm's cache of one sequence."""
    layer = KVCache()
    layer.keys = owned(keys[row : row + 1, :, :length])
    layer.values = owned(values[row : row + 1, :, :length])
    layer.offset = length
    return layer


def _replaced(old: mx.array | None, where: mx.array, new: mx.array | None) -> mx.array | None:
    if old is None or new is None:
        return new
    changed = mx.array(old)
    changed[where] = new
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
