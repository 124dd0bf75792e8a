"""The keys and values of a layer, in arrays with room for more: of one sequence, or of many.

Owns the arrays, how they grow, and where a position is in them. Must never know which tokens they
are, or who asks for them. Invariant: what is held of a position depends only on the position and
on its own keys and values.

The axes of all arrays are [slots, heads, places, width]; a sequence has a slot. The positions of a
sequence are divided into *stretches*, one after the other, which may be kept in different ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from .layers import Runs, owned

GROWTH = 256  # places that are added at a time
SLACK = 256  # places of a ring beyond its window: how far a row can go back, or ahead in one run

Index: TypeAlias = tuple[Any, ...]
Pair: TypeAlias = tuple[Any, Any]
"""Keys and values: an array each, or three if they are packed."""


class Pass:
    """Where the tokens of one forward pass go; shared by the caches of all layers.

    Consecutive slots from ``first`` on get ``count`` tokens each, from their ``positions`` on.
    Those of which ``runs`` is false only get padding: it goes behind their tokens, where nothing
    sees it, and leaves their states as they are. ``whole``: these are all the slots in use, whose
    number is ``held``. ``even``: all positions are the same. ``rooms``: how many slots the arrays
    have, or are to have, with places for the positions before ``reach``.
    """

    def __init__(
        self,
        first: int,
        positions: list[int],
        runs: list[bool],
        *,
        held: int,
        count: int,
        rooms: int,
    ) -> None:
        self.slots = slice(first, first + len(positions))
        self.positions = positions
        self.runs = runs
        self.count = count
        self.rooms, self.reach = rooms, 0
        self.start = min(positions)
        self.end = max(positions) + count  # one more than the highest position
        self.held, self.whole = held, len(positions) == held
        self.even = self.start + count == self.end
        self._places: dict[tuple[int | None, int, int | None, int], tuple[mx.array, ...]] = {}
        self.where: dict[tuple[int | None, int], tuple[Index, Index]] = {}
        """For a ring's size and a number of heads, what ``find`` gave."""
        self._masks: dict[tuple[int | None, int | None], mx.array] = {}

    @cached_property
    def offset(self) -> mx.array | int:
        """The number of tokens before these, as rotary embeddings need it."""
        one = len(self.positions) == 1
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
    def own(self) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        """The position of each token [slots, count]."""
        return np.add.outer(self.positions, np.arange(self.count)).astype(np.int32)

    def find(self, stretch: Stretch, heads: int) -> tuple[Index, Index]:
        """Where in the arrays of the only stretch of a layer these tokens go, and what they see:
        all layers with as many heads find it in ``where`` from now on."""
        ring = stretch.ring
        start = self.start if ring is None else self.start % ring
        if self.even and (ring is None or start + self.count <= ring):
            goes: Index = (self.slots, slice(None), slice(start, start + self.count))
        else:
            goes = self.places(stretch, heads)
        sees = (self.slots, slice(None), slice(stretch.count(self.end)))
        self.where[ring, heads] = goes, sees
        return goes, sees

    def places(self, stretch: Stretch, heads: int) -> tuple[mx.array, ...]:
        """Where each token goes, as slots, heads and places [slots, heads, count]."""
        key = (stretch.ring, stretch.first, stretch.last, heads)
        if key not in self._places:
            slots = np.arange(self.slots.start, self.slots.stop)[:, None, None]
            places = stretch.places_of(self.own)[:, None]
            indexes = np.broadcast_arrays(slots, np.arange(heads)[:, None], places)
            self._places[key] = tuple(mx.array(each.astype(np.int32)) for each in indexes)
        return self._places[key]

    def mask(self, window: int | None, ring: int | None) -> mx.array:
        """Which places each token sees: bool [slots, 1, count, places].

        Place s holds the latest position up to the token's own that falls there.
        """
        key = window, ring
        if key not in self._masks:
            own = mx.array(self.own[:, None, :, None])
            if ring is not None and self.count > SLACK:  # what ``SlotKeys`` gives of a long run
                places, ring = mx.arange(self.before(ring), self.end), None
            else:
                places = mx.arange(self.end if ring is None else min(self.end, ring))
            ago = own - places if ring is None else (own - places) % ring
            seen = places <= own if ring is None else ago <= own
            self._masks[key] = seen if window is None else seen & (ago < window)
        return self._masks[key]

    def before(self, ring: int) -> int:
        """The first position that the first token of a long run sees in a window."""
        return max(0, self.start - (ring - SLACK) + 1)


@dataclass(frozen=True, slots=True)
class Packing:
    """Numbers that are quantised in groups: words, scales and biases, as ``mx.quantize`` has it."""

    bits: int
    group_size: int

    def packed(self, array: mx.array) -> tuple[mx.array, ...]:
        return tuple(mx.quantize(array, group_size=self.group_size, bits=self.bits))

    def unpacked(self, parts: Sequence[mx.array]) -> mx.array:
        words, scales, biases = parts
        return mx.dequantize(words, scales, biases, group_size=self.group_size, bits=self.bits)


class Stretch:
    """The positions from ``first`` to ``last``; ``None`` is all later ones. A position is at the
    place of its number, in a ``ring`` of places modulo its size.

    Without a ``packing``, keys and values are kept as they are.
    """

    def __init__(
        self,
        packing: Packing | None = None,
        first: int = 0,
        last: int | None = None,
        ring: int | None = None,
    ) -> None:
        self.packing = packing
        self.first = first
        self.last = last
        self.ring = ring
        self.arrays: list[mx.array] = []

    def kept(self, keys: mx.array, values: mx.array) -> tuple[mx.array, ...]:
        """The form in which keys and values are kept here."""
        if self.packing is None:
            return (keys, values)
        return (*self.packing.packed(keys), *self.packing.packed(values))

    def pair(self, run: Sequence[mx.array]) -> Pair:
        """What is kept, as keys and values."""
        if self.packing is None:
            return run[0], run[1]
        return self.packing.unpacked(run[:3]), self.packing.unpacked(run[3:])

    def count(self, end: int) -> int:
        """How many places the positions before ``end`` need."""
        if self.ring is not None:
            return min(end, self.ring)
        if self.last is not None:
            return min(end, self.last)
        return end if end > self.first else 0

    def room(self, end: int, more: int = 0) -> int:
        """The number of places to have for the positions before ``end``, and ``more``."""
        most = self.ring if self.last is None else self.last + more
        room = -(-(self.count(end) + more) // GROWTH) * GROWTH
        return room if most is None else min(room, most)

    def begin(self, slots: int, run: Sequence[mx.array]) -> None:
        """Make arrays for what is kept like this, with no places."""
        self.arrays = [mx.zeros((slots, a.shape[1], 0, a.shape[3]), a.dtype) for a in run]

    def reserve(self, slots: int, end: int, more: int = 0) -> None:
        have, _, places, _ = self.arrays[0].shape
        missing = self.room(end, more) - places if self.count(end) + more > places else 0
        if slots > have or missing:
            wider = [(0, max(0, slots - have)), (0, 0), (0, missing), (0, 0)]
            self.arrays = [mx.pad(array, wider) for array in self.arrays]

    def trim(self, slots: int, end: int) -> None:
        """Free what is beyond ``slots`` slots and the positions before ``end``."""
        have, _, places, _ = self.arrays[0].shape
        room = self.room(end)
        if have > slots or places > room:
            self.arrays = [owned(array[:slots, :, :room]) for array in self.arrays]

    def write(self, slots: slice, start: int, run: Sequence[mx.array]) -> None:
        """Store a run of positions from ``start`` on, the same ones in all these slots."""
        count = run[0].shape[2]
        for places, part in self._pieces(start, count):
            whole = part.stop - part.start == count
            for held, array in zip(self.arrays, run, strict=True):
                held[slots, :, places] = array if whole else array[:, :, part]

    def scatter(self, step: Pass, run: Sequence[mx.array]) -> None:
        """Store the tokens of a pass; those of other stretches go to a place of no position."""
        if self.last is not None:
            self.reserve(0, step.end, 1)
        for held, array in zip(self.arrays, run, strict=True):
            held[step.places(self, held.shape[1])] = array

    def seen(self, slots: slice, end: int) -> tuple[mx.array, ...]:
        """What is at the places of the positions before ``end``."""
        count = self.count(end)
        return tuple([array[slots, :, :count] for array in self.arrays])

    def run(self, slots: slice, start: int, end: int) -> tuple[mx.array, ...]:
        """What is kept of positions, in order; shares the buffers."""
        if self.ring is None:
            places = slice(max(start, self.first), self.count(end))
            return tuple([array[slots, :, places] for array in self.arrays])
        turned = mx.arange(start, end) % self.ring
        return tuple([mx.take(array[slots], turned, axis=2) for array in self.arrays])

    def fill(self, run: Sequence[mx.array]) -> None:
        """Hold a run from the first position on, in its own arrays."""
        before = [(0, 0), (0, 0), (self.first, 0), (0, 0)]
        self.arrays = [mx.pad(array, before) if self.first else array for array in run]

    def move(self, source: int, target: int, end: int) -> None:
        """Copy what one slot has of the positions before ``end`` to another."""
        count = self.count(end)
        for held in self.arrays:
            held[target, :, :count] = held[source, :, :count]

    def places_of(self, positions: np.ndarray[Any, np.dtype[np.int32]]) -> Any:
        """The places of positions. Those of other stretches have one that is never seen."""
        if self.ring is not None:
            return positions % self.ring
        if self.last is not None:
            return np.minimum(positions, self.last)
        return np.where(positions < self.first, 0, positions) if self.first else positions

    def _pieces(self, start: int, count: int) -> list[tuple[slice, slice]]:
        """The places of ``count`` positions from ``start`` on, and which of them these are; cut
        where the stretch ends and where the ring wraps around."""
        if self.ring is None:
            low, high = max(start, self.first), self.count(start + count)
            return [(slice(low, high), slice(low - start, high - start))] if high > low else []
        first = start % self.ring
        if first + count <= self.ring:
            return [(slice(first, first + count), slice(0, count))]
        cut = self.ring - first
        return [(slice(first, self.ring), slice(0, cut)), (slice(count - cut), slice(cut, count))]


class Places:
    """All stretches of a layer, in order; without arrays until something is stored."""

    def __init__(self, stretches: list[Stretch]) -> None:
        self.stretches = stretches

    @property
    def empty(self) -> bool:
        """Whether there are no arrays."""
        return not self.stretches[0].arrays

    @property
    def slots(self) -> int:
        """The number of slots that there is room for."""
        return 0 if self.empty else self.stretches[0].arrays[0].shape[0]

    @property
    def count(self) -> int:
        """The places of each slot, of which a ring does not have more than it needs."""
        last = self.stretches[-1]
        return last.arrays[0].shape[2] if last.arrays and last.ring is None else 0

    def arrays(self) -> list[mx.array]:
        return [array for stretch in self.stretches for array in stretch.arrays]

    def reserve(self, slots: int, end: int) -> None:
        """Make room for ``slots`` slots and the positions before ``end``."""
        for stretch in self.stretches:
            stretch.reserve(slots, end)

    def trim(self, slots: int, end: int) -> None:
        """Free what is beyond ``slots`` slots and the positions before ``end``."""
        for stretch in self.stretches:
            stretch.trim(slots, end)

    def clear(self) -> None:
        """Free everything."""
        for stretch in self.stretches:
            stretch.arrays = []

    def begin(self, slots: int, keys: mx.array, values: mx.array, end: int) -> None:
        """Make arrays for such keys and values, with room for the positions before ``end``."""
        for stretch in self.stretches:
            stretch.begin(slots, stretch.kept(keys[:, :, :1], values[:, :, :1]))
        self.reserve(slots, end)

    def write(self, start: int, keys: mx.array, values: mx.array) -> None:
        """Store the next positions of all slots, from ``start`` on in each."""
        end = start + keys.shape[2]
        if self.empty:
            self.begin(keys.shape[0], keys, values, end)
        self.reserve(keys.shape[0], end)
        for stretch in self._touched(start, end):
            stretch.write(slice(None), start, stretch.kept(keys, values))

    def store(self, step: Pass, keys: mx.array, values: mx.array) -> None:
        """Store the tokens of a pass."""
        for stretch in self._touched(step.start, step.end):
            run = stretch.kept(keys, values)
            if step.even:
                stretch.write(step.slots, step.start, run)
            else:
                stretch.scatter(step, run)

    def seen(self, slots: slice, end: int) -> Pair:
        """The keys and values of the positions before ``end``."""
        *early, late = self._touched(0, end)
        keys, values = late.pair(late.seen(slots, end))
        for stretch in early:  # in place, as the other floats were made just now
            first_keys, first_values = stretch.pair(stretch.seen(slots, end))
            keys[:, :, : stretch.last], values[:, :, : stretch.last] = first_keys, first_values
        return keys, values

    def seen_packed(self, slots: slice, end: int) -> Pair:
        """The same, packed; only if there is a single stretch."""
        (stretch,) = self.stretches
        run = stretch.seen(slots, end)
        return run[:3], run[3:]

    def put(self, slot: int, piece: Runs, start: int, slots: int) -> None:
        """Copy what one sequence has of positions from ``start`` on; makes room for ``slots``."""
        if self.empty:
            for stretch, run in zip(self.stretches, piece, strict=True):
                stretch.begin(slots, run)
        at = start
        self.reserve(slots, start + sum(run[0].shape[2] for run in piece))
        for stretch, run in zip(self.stretches, piece, strict=True):
            stretch.write(slice(slot, slot + 1), at, run)
            at += run[0].shape[2]

    def put_all(self, slot: int, pieces: Sequence[Runs], slots: int) -> None:
        """Copy what one sequence has from its first position on, in pieces that follow one
        another; makes room for ``slots``, once."""
        for stretch, run in zip(self.stretches, pieces[0], strict=True):
            if not stretch.arrays:
                stretch.begin(slots, run)
        self.reserve(slots, sum(run[0].shape[2] for piece in pieces for run in piece))
        at = 0
        for piece in pieces:
            for stretch, run in zip(self.stretches, piece, strict=True):
                if run[0].shape[2]:
                    stretch.write(slice(slot, slot + 1), at, run)
                    at += run[0].shape[2]

    def copy_of(self, slot: int, start: int, end: int) -> Runs:
        """What a slot has of positions, in arrays that keep no other buffer alive."""
        runs = (each.run(slice(slot, slot + 1), start, end) for each in self.stretches)
        return tuple(tuple(map(owned, run)) for run in runs)

    def held(self, end: int) -> Runs:
        """What all slots have of the positions before ``end``; shares the buffers."""
        return () if self.empty else tuple(s.run(slice(None), 0, end) for s in self.stretches)

    def fill(self, piece: Runs) -> None:
        """Hold what one sequence has of its positions, in arrays that are its own."""
        for stretch, run in zip(self.stretches, piece, strict=True):
            stretch.fill(run)

    def move(self, source: int, target: int, end: int) -> None:
        """Copy what one slot has of the positions before ``end`` to another."""
        for stretch in self.stretches:
            stretch.move(source, target, end)

    def _touched(self, start: int, end: int) -> list[Stretch]:
        """The stretches with positions from ``start`` to ``end``."""
        if len(self.stretches) == 1:
            return self.stretches
        return [
            each
            for each in self.stretches
            if end > each.first and (each.last is None or start < each.last)
        ]


class Keys:
    """The keys in a cache's ``places``, under the name that they have in mlx-lm's caches.

    Some models make them depend on what has to be computed with them, whether or not it is read
    (``cache.keys = mx.depends(cache.keys, ...)``): a part of a model what it sends to the next
    machine, for example. Packed keys are nothing to compute with, so there are none to see.
    """

    def __get__(self, cache: Any, kind: type | None = None) -> mx.array:
        arrays, packed = self._of(cache)
        return mx.depends(mx.zeros((0,)), arrays[0]) if packed else arrays[0]

    def __set__(self, cache: Any, keys: mx.array) -> None:
        arrays, packed = self._of(cache)
        arrays[0] = mx.depends(arrays[0], keys) if packed else keys

    def _of(self, cache: Any) -> tuple[list[mx.array], bool]:
        """The arrays of a layer's first positions, and whether any position is packed."""
        if cache is None or cache.places.empty:
            raise AttributeError("there are no keys")
        stretches: list[Stretch] = cache.places.stretches
        return stretches[0].arrays, any(each.packing is not None for each in stretches)
