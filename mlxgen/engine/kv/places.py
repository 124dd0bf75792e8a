"""The keys and values of a layer, in arrays with room for more: of one sequence, or of many.

Owns the arrays, how they grow, and where a position is in them. Must never know which tokens they
are, or who asks for them. Invariant: what is held of a position depends only on the position and
on its own keys and values.

The axes of all arrays are [slots, heads, places, width]; a sequence has a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from .layers import Run, owned

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
        self._places: dict[tuple[int | None, int | None, int], tuple[mx.array, ...]] = {}
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

    def find(self, ring: int | None, heads: int) -> tuple[Index, Index]:
        """Where in the arrays of a layer that packs nothing these tokens go, and what they see: all
        layers with as many heads find it in ``where`` from now on."""
        start = self.start if ring is None else self.start % ring
        if self.even and (ring is None or start + self.count <= ring):
            goes: Index = (self.slots, slice(None), slice(start, start + self.count))
        else:
            goes = self.places(ring, heads)
        sees = (self.slots, slice(None), slice(self.end if ring is None else min(self.end, ring)))
        self.where[ring, heads] = goes, sees
        return goes, sees

    def places(self, ring: int | None, heads: int, most: int | None = None) -> tuple[mx.array, ...]:
        """Where each token goes, as slots, heads and places [slots, heads, count]; those after
        ``most`` go there."""
        key = (ring, most, heads)
        if key not in self._places:
            places = self.own if ring is None else self.own % ring
            if most is not None:
                places = np.minimum(places, most)
            slots = np.arange(self.slots.start, self.slots.stop)[:, None, None]
            indexes = np.broadcast_arrays(slots, np.arange(heads)[:, None], places[:, None])
            self._places[key] = tuple([mx.array(each.astype(np.int32)) for each in indexes])
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


class Places:
    """The keys and values of a layer; without arrays until something is stored.

    A position is at the place of its number, in a ``ring`` of places modulo its size. With a
    ``packing``, the parts of the packed keys come first, then those of the values, and then, in
    arrays of their own, the ``first`` positions as they are.
    """

    def __init__(
        self, packing: Packing | None = None, first: int = 0, ring: int | None = None
    ) -> None:
        self.packing = packing
        self.first = first
        self.ring = ring
        self.arrays: list[mx.array] = []
        self._main = 2 if packing is None else 6  # arrays of all positions

    @property
    def empty(self) -> bool:
        """Whether there are no arrays."""
        return not self.arrays

    @property
    def count(self) -> int:
        """The places of each slot, of which a ring does not have more than it needs."""
        return self.arrays[0].shape[2] if self.arrays and self.ring is None else 0

    def needed(self, end: int) -> int:
        """How many places the positions before ``end`` need."""
        return end if self.ring is None else min(end, self.ring)

    def begin(self, slots: int, keys: mx.array, values: mx.array, end: int) -> None:
        """Make arrays for such keys and values, with room for the positions before ``end``."""
        self._make(slots, self._kept(keys[:, :, :1], values[:, :, :1]))
        self.reserve(slots, end)

    def reserve(self, slots: int, end: int) -> None:
        """Make room for ``slots`` slots and the positions before ``end``."""
        have, _, places, _ = self.arrays[0].shape
        missing = self._room(end) - places if self.needed(end) > places else 0
        more = max(0, slots - have)
        if more or missing:
            for i, array in enumerate(self.arrays):
                wider = missing if i < self._main else 0
                self.arrays[i] = mx.pad(array, [(0, more), (0, 0), (0, wider), (0, 0)])

    def trim(self, slots: int, end: int) -> None:
        """Free what is beyond ``slots`` slots and the positions before ``end``."""
        have, _, places, _ = self.arrays[0].shape
        room = self._room(end)
        if have > slots or places > room:
            self.arrays = [
                owned(array[:slots, :, :room] if i < self._main else array[:slots])
                for i, array in enumerate(self.arrays)
            ]

    def write(self, slots: slice, start: int, run: Run) -> None:
        """Store a run of positions from ``start`` on, the same ones in all these slots."""
        count = run[0].shape[2]
        for places, part in self._pieces(start, count):
            whole = part.stop - part.start == count
            for held, array in zip(self.arrays[: self._main], run, strict=False):
                held[slots, :, places] = array if whole else array[:, :, part]
        if (more := min(start + count, self.first) - start) > 0:
            pairs = zip(self.arrays[self._main :], run[self._main :], strict=True)
            for held, array in pairs:
                held[slots, :, start : start + more] = array[:, :, :more]

    def append(self, start: int, keys: mx.array, values: mx.array) -> None:
        """Store the next positions of all slots, from ``start`` on in each."""
        end = start + keys.shape[2]
        if self.empty:
            self.begin(keys.shape[0], keys, values, end)
        self.reserve(keys.shape[0], end)
        self.write(slice(None), start, self._kept(keys, values))

    def store(self, step: Pass, keys: mx.array, values: mx.array) -> None:
        """Store the tokens of a pass."""
        run = self._kept(keys, values)
        if step.even:
            self.write(step.slots, step.start, run)
            return
        for i, (held, array) in enumerate(zip(self.arrays, run, strict=True)):
            if i < self._main:
                held[step.places(self.ring, held.shape[1])] = array
            elif step.start < self.first:  # later positions go to the place after the first ones
                held[step.places(None, held.shape[1], self.first)] = array

    def seen(self, slots: slice, end: int) -> Pair:
        """The keys and values of the positions before ``end``."""
        run = self.run(slots, 0, end)
        if self.packing is None:
            return run[0], run[1]
        keys, values = self.packing.unpacked(run[:3]), self.packing.unpacked(run[3:6])
        if self.first:  # in place, as these floats were made just now
            early = min(end, self.first)
            keys[:, :, :early], values[:, :, :early] = run[6], run[7]
        return keys, values

    def seen_packed(self, slots: slice, end: int) -> Pair:
        """The same, packed; only if all positions are."""
        run = self.run(slots, 0, end)
        return run[:3], run[3:]

    def run(self, slots: slice, start: int, end: int) -> Run:
        """What is kept of positions, in order; shares the buffers, unless it is a ring."""
        if self.ring is not None:
            turned = mx.arange(start, end) % self.ring
            return tuple([mx.take(array[slots], turned, axis=2) for array in self.arrays])
        main = [array[slots, :, start:end] for array in self.arrays[: self._main]]
        early = slice(min(start, self.first), min(end, self.first))
        return tuple(main + [array[slots, :, early] for array in self.arrays[self._main :]])

    def put(self, slot: int, pieces: Sequence[Run], slots: int, at: int = 0) -> None:
        """Copy what one sequence has from a position on, in pieces that follow one another; makes
        room for ``slots``, once."""
        if self.empty:
            self._make(slots, pieces[0])
        self.reserve(slots, at + sum(piece[0].shape[2] for piece in pieces))
        for piece in pieces:
            self.write(slice(slot, slot + 1), at, piece)
            at += piece[0].shape[2]

    def copy_of(self, slot: int, start: int, end: int) -> Run:
        """What a slot has of positions, in arrays that keep no other buffer alive."""
        return tuple(map(owned, self.run(slice(slot, slot + 1), start, end)))

    def held(self, end: int) -> Run:
        """What all slots have of the positions before ``end``; shares the buffers."""
        return () if self.empty else self.run(slice(None), 0, end)

    def fill(self, run: Run) -> None:
        """Hold what one sequence has of its positions, in arrays that are its own."""
        rest = [(0, 0), (0, 0), (0, self.first + 1), (0, 0)]
        early = [mx.pad(array, rest)[:, :, : self.first + 1] for array in run[self._main :]]
        self.arrays = [*run[: self._main], *early]

    def move(self, source: int, target: int, end: int) -> None:
        """Copy what one slot has of the positions before ``end`` to another."""
        count = self.needed(end)
        for held in self.arrays:
            held[target, :, :count] = held[source, :, :count]

    def _kept(self, keys: mx.array, values: mx.array) -> Run:
        """The form in which keys and values are kept here."""
        if self.packing is None:
            return keys, values
        packed = (*self.packing.packed(keys), *self.packing.packed(values))
        return (*packed, keys, values) if self.first else packed

    def _make(self, slots: int, run: Run) -> None:
        """Make arrays for what is kept like this."""
        self.arrays = [
            mx.zeros(
                (slots, a.shape[1], 0 if i < self._main else self.first + 1, a.shape[3]), a.dtype
            )
            for i, a in enumerate(run)
        ]

    def _room(self, end: int) -> int:
        """The number of places to have for the positions before ``end``."""
        room = -(-self.needed(end) // GROWTH) * GROWTH
        return room if self.ring is None else min(room, self.ring)

    def _pieces(self, start: int, count: int) -> list[tuple[slice, slice]]:
        """The places of ``count`` positions from ``start`` on, and which of them these are; cut
        where the ring wraps around."""
        if self.ring is None:
            return [(slice(start, start + count), slice(0, count))]
        first = start % self.ring
        if first + count <= self.ring:
            return [(slice(first, first + count), slice(0, count))]
        cut = self.ring - first
        return [(slice(first, self.ring), slice(0, cut)), (slice(count - cut), slice(cut, count))]


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
        """The arrays of a layer, and whether they are packed."""
        if cache is None or cache.places.empty:
            raise AttributeError("there are no keys")
        return cache.places.arrays, cache.places.packing is not None
