"""Layer caches that hold many sequences side by side, each at a length of its own.

Owns the arrays of a batch, one cache for each layer, in the calling convention of mlx-lm's models:
how they grow, and where a position is in them. Must never know which tokens they hold, or who asks
for them. Invariant: what is held for a position depends only on the position and on its own keys
and values, and a token sees its own sequence's up to its position.

A sequence has a *slot*, an index on the first axis of arrays [slots, heads, places, width], and its
token at position p is at place p of the third axis (p modulo the ring's size if a window slides).
So sequences of different lengths need no padding; going back costs nothing, as the places after a
position are never seen and will be overwritten; and a sequence joins or leaves without moving the
others. mlx-lm's batch caches align the sequences at their ends instead: there a place means the
same for all, and a rewind of one sequence has to roll its keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from .layers import LayerCache, Run, cut, keys_and_values, narrowed, owned

GROWTH = 256  # places added at a time
SLACK = 256  # places of a ring beyond its window: how far a row can go back, or ahead in one run
MASKED_HERE = 1 << 16  # mask entries that the host computes in some ten microseconds
PACKED = 6  # arrays of packed keys and values: words, scales and biases of each

Index: TypeAlias = tuple[Any, ...]
Pair: TypeAlias = tuple[Any, Any]
"""Keys and values: an array each, or three if they are packed."""


class Pass:
    """Where the tokens of one forward pass go; shared by the caches of all layers.

    Consecutive slots from ``first`` on get ``count`` tokens each, starting at their ``positions``.
    A slot whose ``runs`` is False gets only padding: it goes behind the slot's tokens, where
    nothing sees it, and leaves its states as they are. ``whole``: these are all ``held`` slots in
    use. ``even``: all positions are the same. ``rooms``: how many slots the arrays have or will
    get, with places for the positions before ``reach``. ``offset``: the number of tokens before
    these, as rotary embeddings need it.
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
        reach: int,
    ) -> None:
        self.slots = slice(first, first + len(positions))
        self.positions, self.runs, self.count = positions, runs, count
        self.rooms, self.reach = rooms, reach
        self.start = min(positions)
        self.end = max(positions) + count  # one more than the highest position
        self.whole = len(positions) == held
        self.even = self.start + count == self.end
        self.offset: mx.array | int = positions[0]
        if len(positions) > 1:
            self.offset = mx.array(positions, mx.int32)
        self.offset_after = self.offset + count
        self.row = (  # where tokens of rows of equal length go, and what they see
            (self.slots, slice(None), slice(self.start, self.end)),
            (self.slots, slice(None), slice(self.end)),
        )
        self._places: dict[tuple[int | None, int | None, int], Index] = {}
        self.found: dict[tuple[int | None, int], tuple[Index, Index]] = {}
        """The results of ``find``, by ring size and number of heads."""
        self.seen: dict[Any, Pair] = {}
        """Keys and values that layers returned for long runs, which a ring no longer holds."""
        self._masks: dict[tuple[int | None, int | None], mx.array] = {}

    def chosen(self, new: mx.array, old: mx.array) -> mx.array:
        """The ``new`` states of the slots that run, and the ``old`` states of the others."""
        return mx.where(mx.array(self.runs).reshape(-1, *[1] * (new.ndim - 1)), new, old)

    @cached_property
    def own(self) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        """The position of each token [slots, count]."""
        return np.add.outer(self.positions, np.arange(self.count)).astype(np.int32)

    def find(self, ring: int | None, heads: int) -> tuple[Index, Index]:
        """Where in a layer's arrays these tokens go, and what they see; saved in ``found`` for all
        layers with the same ring and number of heads."""
        start = self.start if ring is None else self.start % ring
        if self.even and (ring is None or start + self.count <= ring):
            goes: Index = (self.slots, slice(None), slice(start, start + self.count))
        else:
            goes = self.places(ring, heads)
        sees = (self.slots, slice(None), slice(self.end if ring is None else min(self.end, ring)))
        self.found[ring, heads] = goes, sees
        return goes, sees

    def places(self, ring: int | None, heads: int, most: int | None = None) -> Index:
        """Where each token goes, as slots, heads and places [slots, heads, count]; places beyond
        ``most`` become ``most``."""
        key = ring, most, heads
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
            own: Any = self.own[:, None, :, None]
            small = own.size * self.end <= MASKED_HERE  # then no primitive is launched
            lib: Any = np if small else mx
            if ring is not None and self.count > SLACK:  # as ``Keys`` returns a long run
                places, ring = lib.arange(self.before(ring), self.end), None
            else:
                places = lib.arange(self.end if ring is None else min(self.end, ring))
            own = own if small else mx.array(own)
            ago = own - places if ring is None else (own - places) % ring
            seen = places <= own if ring is None else ago <= own
            self._masks[key] = mx.array(seen if window is None else seen & (ago < window))
        return self._masks[key]

    def before(self, ring: int) -> int:
        """The first position that the first token of a long run sees in a window."""
        return max(0, self.start - (ring - SLACK) + 1)


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How a model's keys and values are quantised: from position ``start`` on, and not before.

    They are packed as by ``mx.quantize``. mlx-lm's attention can work on packed ones: it does so
    for a cache that has ``bits``. Then it reads fewer bytes, though once for each query head and
    token; but it holds the scores, and lacks what some models need. So it gets packed ones for
    single tokens, if the model can run with that (``packed``), and otherwise floats, dequantised
    for one layer at a time.
    """

    bits: int
    group_size: int
    start: int = 0
    packed: bool = field(default=False, repr=False)

    def kept(self, keys: mx.array, values: mx.array) -> Run:
        """What is stored for keys and values: packed, and also unpacked if there is a ``start``."""
        size, bits = self.group_size, self.bits
        packed = *mx.quantize(keys, size, bits), *mx.quantize(values, size, bits)
        return (*packed, keys, values) if self.start else packed

    def floats(self, run: Run) -> tuple[mx.array, mx.array]:
        """The keys and values as floats, of a run that begins with the first position."""
        keys, values = (
            mx.dequantize(words, scales, biases, self.group_size, self.bits)
            for words, scales, biases in (run[:3], run[3:PACKED])
        )
        if self.start:  # in place, as these floats were made just now
            early = run[PACKED].shape[2]
            keys[:, :, :early], values[:, :, :early] = run[PACKED:]
        return keys, values

    def seen(self, cache: Any, run: Run, count: int) -> Pair:
        """The keys and values of a run as a pass of ``count`` tokens gets them, through a cache."""
        if self.packed and count == 1:
            cache.bits, cache.group_size = self.bits, self.group_size
            return run[:3], run[3:]
        vars(cache).pop("bits", None)
        return self.floats(run)


class _Named:
    """A cache's keys or values, under their names in mlx-lm's caches.

    Some models make them depend on an array that has to be computed with them, read or not
    (``cache.keys = mx.depends(cache.keys, ...)``): for example, what a part of a model sends to the
    next machine. Packed ones cannot be computed with, so an empty array stands for them.
    """

    def __init__(self, half: int) -> None:
        self._half = half  # 0: keys, 1: values

    def _place(self, cache: Any) -> int:
        return self._half if cache.how is None else self._half * PACKED // 2

    def __get__(self, cache: Any, kind: type | None = None) -> mx.array:
        if cache is None or not cache.arrays:
            raise AttributeError("there are no keys and values")
        first: mx.array = cache.arrays[self._place(cache)]
        return first if cache.how is None else mx.depends(mx.zeros((0,)), first)

    def __set__(self, cache: Any, given: mx.array) -> None:
        place = self._place(cache)
        first = cache.arrays[place]
        cache.arrays[place] = given if cache.how is None else mx.depends(first, given)


class Keys:
    """Keys and values of an attention layer; there are no ``arrays`` until something is stored.

    While there is one slot, plain arrays are in a cache of mlx-lm's (``one``), which the model uses
    directly, with no Python call of ours per token. If they are quantised, the parts of the packed
    keys come first, then those of the values, and then, in arrays of their own, the first positions
    unquantised.
    """

    keys, values = _Named(0), _Named(1)

    def __init__(self, window: int | None = None, how: Quantisation | None = None) -> None:
        self.how = how
        self.window = window
        self.ring = window + SLACK if window is not None else None
        self.one: KVCache | None = None
        self._arrays: list[mx.array] = []
        self.offset: mx.array | int = 0
        self.step: Pass | None = None
        """Where the tokens of the pass being built go; the slots set it for all layers."""

    def face(self, single: bool) -> Any:
        """The cache that the model gets from now on, for one slot or for several."""
        arrays = self.arrays
        is_plain = self.how is None and self.window is None
        self.one = KVCache() if single and is_plain else None
        self.arrays = arrays
        return self if self.one is None else self.one

    @property
    def arrays(self) -> list[mx.array]:
        one = self.one
        if one is None:
            return self._arrays
        return [] if one.keys is None else [one.keys, one.values]

    @arrays.setter
    def arrays(self, arrays: list[mx.array]) -> None:
        if self.one is None:
            self._arrays = arrays
        else:
            self._arrays = []
            self.one.keys, self.one.values = arrays or (None, None)

    # mlx-lm's convention

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Pair:
        """Store the keys and values of a pass; return those that its tokens may attend to.

        Every layer of every token comes here, so what is the same for all layers is computed once.
        """
        step, how = self.step, self.how
        assert step is not None
        self.offset = step.offset_after
        run = (keys, values) if how is None else how.kept(keys, values)
        if not self._arrays:
            self._make(step.rooms, step.reach, run)
        if self.ring is not None and step.count > SLACK:
            return self._run_long(step, run)
        if step.even and self.ring is None:
            goes, sees = step.row
        else:
            key = self.ring, keys.shape[1]
            goes, sees = step.found.get(key) or step.find(*key)
        if how is None:
            all_keys, all_values = self._arrays
            all_keys[goes], all_values[goes] = keys, values
            return all_keys[sees], all_values[sees]
        for held, new in zip(self.arrays[:PACKED], run, strict=False):
            held[goes] = new
        if step.start < how.start:  # later positions all go to one place after the first ones
            goes = step.places(None, keys.shape[1], how.start)
            for held, new in zip(self.arrays[PACKED:], run[PACKED:], strict=True):
                held[goes] = new
        return how.seen(self, self.run(step.slots, 0, step.end), step.count)

    def _run_long(self, step: Pass, run: Run) -> Pair:
        """Store a run of one slot that is longer than a ring's slack; returns what its first tokens
        see, and the run, in order."""
        assert self.ring is not None
        before = self.run(step.slots, step.before(self.ring), step.start)
        keys, values = (
            mx.concatenate(list(pair), axis=2) for pair in zip(before, run, strict=True)
        )
        step.seen[self] = keys, values
        kept = min(step.count, self.ring)
        self._write(step.slots, step.end - kept, cut(run, step.count - kept, step.count))
        return keys, values

    def keys_and_values(self) -> Pair:
        """The result of ``update_and_fetch``, for layers that share it."""
        step, arrays = self.step, self.arrays
        assert step is not None
        if self in step.seen:
            return step.seen[self]
        if self.how is not None:
            return self.how.seen(self, self.run(step.slots, 0, step.end), step.count)
        _, sees = step.find(self.ring, arrays[0].shape[1])
        return arrays[0][sees], arrays[1][sees]

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
        return not self.arrays

    # places

    @property
    def places(self) -> int:
        """The places of each slot."""
        return self.arrays[0].shape[2] if self.arrays else 0

    def resize(self, slots: int, end: int) -> None:
        """Resize to this many slots, with places for the positions before ``end`` and no more."""
        arrays = []
        for i, array in enumerate(self.arrays):
            have, _, places, _ = array.shape
            room = self._room(end) if i < PACKED else places
            if have > slots or places > room:
                array = owned(array[:slots, :, :room])
            if have < slots or places < room:
                more, wider = max(0, slots - have), max(0, room - places)
                array = mx.pad(array, [(0, more), (0, 0), (0, wider), (0, 0)])
            arrays.append(array)
        self.arrays = arrays

    def run(self, slots: slice, start: int, end: int) -> Run:
        """Stored keys and values of positions, in order; shares the buffers, except for a ring."""
        if self.ring is not None:
            turned = mx.arange(start, end) % self.ring
            return tuple([mx.take(array[slots], turned, axis=2) for array in self.arrays])
        main = [array[slots, :, start:end] for array in self.arrays[:PACKED]]
        early = slice(min(start, self._first), min(end, self._first))
        return (*main, *[array[slots, :, early] for array in self.arrays[PACKED:]])

    def copy_of(self, slot: int, start: int, end: int) -> Run:
        """A slot's keys and values of positions, in arrays that keep no other buffer alive."""
        return tuple(map(owned, self.run(slice(slot, slot + 1), start, end)))

    def write(
        self, slot: int, pieces: Sequence[Run], slots: int, room: int = 0, at: int = 0
    ) -> None:
        """Copy one sequence's keys and values from ``at`` on, in consecutive pieces; makes room
        once, for ``slots`` and the positions before ``room``."""
        end = max(room, at + sum(piece[0].shape[2] for piece in pieces))
        if not self.arrays:
            self._make(slots, end, pieces[0])
        self.resize(slots, max(end, self.places))
        for piece in pieces:
            self._write(slice(slot, slot + 1), at, piece)
            at += piece[0].shape[2]

    def _write(self, slots: slice, start: int, run: Run) -> None:
        end = start + run[0].shape[2]
        places: Any = slice(start, end)
        if self.ring is not None:
            places = mx.arange(start, end) % self.ring
        for held, new in zip(self.arrays[:PACKED], run, strict=False):
            held[slots, :, places] = new
        if start < self._first:
            for held, new in zip(self.arrays[PACKED:], run[PACKED:], strict=True):
                held[slots, :, start : min(end, self._first)] = new

    @property
    def _first(self) -> int:
        """How many of the first positions are also kept unquantised."""
        return 0 if self.how is None else self.how.start

    def _make(self, slots: int, end: int, run: Run) -> None:
        """Make arrays in the form of ``run``."""
        rooms = [self._room(end)] * PACKED + [self._first + 1] * 2
        self.arrays = [
            mx.zeros((slots, array.shape[1], room, array.shape[3]), array.dtype)
            for array, room in zip(run, rooms, strict=False)
        ]

    def _room(self, end: int) -> int:
        """The number of places to have for the positions before ``end``."""
        room = -(-end // GROWTH) * GROWTH
        return room if self.ring is None else min(room, self.ring)

    # the slots

    def put(self, slot: int, leaf: LayerCache, slots: int) -> None:
        """Copy one sequence's keys to ``slot``; makes room for ``slots`` sequences."""
        if leaf.offset:
            piece = cut(keys_and_values(narrowed(leaf)), 0, leaf.offset)
            self.write(slot, [piece], slots, at=leaf.offset - piece[0].shape[2])

    def get(self, slot: int, length: int, leaf: LayerCache) -> None:
        """Copy the window of a slot with ``length`` tokens to an empty cache of one sequence."""
        if self.arrays and self.window is not None:
            start = max(0, length - self.window)
            leaf.keys, leaf.values = self.copy_of(slot, start, length)
            leaf.offset, leaf._idx = length, length - start

    def move(self, source: int, target: int, length: int) -> None:
        """Copy what one slot holds to another."""
        for held in self.arrays:
            held[target, :, :length] = held[source, :, :length]

    def share(self, other: Keys) -> None:
        """Hold what another cache does; a buffer is copied when one of the two writes to it."""
        self.arrays = list(map(mx.array, other.arrays))

    def clear(self) -> None:
        """Free everything."""
        self.arrays = []
