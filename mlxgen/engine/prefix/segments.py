"""What the layers of a model hold of a run of tokens: cut out, kept, and put together again.

Owns the two forms in which the KV of a sequence is kept. A ``Segment`` is a run of tokens of
those layers that hold one key and one value for each token; runs can be cut and joined
anywhere. A ``Snapshot`` is the whole state of all other layers (windows, recurrent states)
after one token, and only of use there. Must never know tokens, or who keeps what for how long.

Invariant: every array of a segment or snapshot has a buffer of its own, as large as the
array, to which nothing writes. So ``nbytes`` is exact, and dropping one frees its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import mlx.core as mx

from ..kv.layers import (
    CacheFactory,
    LayerCache,
    Runs,
    arrays_in,
    can_trim,
    copied,
    cut,
    fill,
    keys_and_values,
    leaves,
    narrowed,
    owned,
    restore,
    sliceable,
)


def holds(caches: Sequence[LayerCache], length: int) -> bool:
    """Whether every sliceable layer holds exactly ``length`` tokens, or was never filled."""
    return all(leaf.empty() or leaf.offset == length for leaf in leaves(caches) if sliceable(leaf))


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """``count`` tokens of all sliceable layers, in the order of ``leaves``; each has as many runs
    as its cache."""

    layers: tuple[Runs, ...]
    count: int
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", sum(array.nbytes for array in self.arrays()))

    @classmethod
    def of(cls, caches: Sequence[LayerCache], start: int, stop: int) -> Segment:
        """A copy of the tokens ``start`` to ``stop``, not evaluated yet."""
        held = (keys_and_values(leaf) for leaf in leaves(caches) if sliceable(leaf))
        return cls(tuple(copied(cut(piece, start, stop), owned) for piece in held), stop - start)

    def arrays(self) -> list[mx.array]:
        return list(arrays_in(self.layers))

    def bytes_of(self, count: int) -> int:
        """The bytes of its first ``count`` tokens."""
        return sum(
            array.nbytes for piece in self.layers for array in arrays_in(cut(piece, 0, count))
        )

    def is_whole(self) -> bool:
        """Whether every layer that holds anything holds all of its tokens."""
        lengths = [[{a.shape[-2] for a in run} for run in layer] for layer in self.layers if layer]
        return all(sum(length for (length,) in layer) == self.count for layer in lengths)

    def split(self, at: int) -> tuple[Segment, Segment]:
        """The first ``at`` tokens and the rest, both copies that are submitted."""
        first, rest = (
            Segment(tuple(copied(cut(piece, *tokens), owned) for piece in self.layers), count)
            for tokens, count in (((0, at), at), ((at, self.count), self.count - at))
        )
        mx.async_eval(first.arrays(), rest.arrays())
        return first, rest


Placed: TypeAlias = tuple[Segment, int]
"""A segment, and the place where it begins."""


def spliced(placed: Iterable[Placed], start: int, stop: int) -> Segment:
    """The tokens ``start`` to ``stop`` of segments that follow one another, not evaluated yet.

    A segment that is just that is given as it is, as nothing writes to it.
    """
    parts = [
        (segment, max(start, at) - at, min(stop, at + segment.count) - at)
        for segment, at in placed
        if at < stop and at + segment.count > start
    ]
    if len(parts) == 1 and parts[0][0].count == stop - start:
        return parts[0][0]
    assert sum(last - first for _, first, last in parts) == stop - start
    columns = zip(*(segment.layers for segment, _, _ in parts), strict=True)
    ends = [(first, last) for _, first, last in parts]
    layers = tuple(
        _joined([cut(piece, *end) for piece, end in zip(same, ends, strict=True)], 0)
        for same in columns
    )
    return Segment(copied(layers, owned) if len(parts) == 1 else layers, stop - start)


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of all layers that are not sliceable, after ``length`` tokens."""

    leaves: tuple[LayerCache, ...]
    length: int

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays())

    @classmethod
    def of(cls, caches: Sequence[LayerCache], length: int) -> Snapshot:
        """A copy of the state, not evaluated yet, without keys that no later token can see."""
        kept = [narrowed(leaf) for leaf in leaves(caches) if not sliceable(leaf)]
        return cls(tuple(copied(leaf, owned) for leaf in kept), length)

    def arrays(self) -> list[mx.array]:
        return list(arrays_in(self.leaves))

    def serves(self, length: int) -> bool:
        """Whether it can be trimmed to ``length`` tokens, which must not exceed its own."""
        return all(can_trim(leaf, self.length - length) for leaf in self.leaves)


def rebuilt(
    make: CacheFactory,
    runs: Sequence[tuple[Segment, int]],
    snapshot: Snapshot | None,
    length: int,
    capacity: int,
) -> list[LayerCache]:
    """Caches that hold ``length`` tokens, from ``runs`` of segments and a snapshot's state.

    A run is a segment and how many of its tokens to take. Nothing is evaluated. Each sliceable
    layer is one concatenation, with zeros after the tokens up to ``capacity``, which later tokens
    overwrite in place. A snapshot's arrays are shared; a write in place copies them first.
    """
    caches = make()
    sliced = [leaf for leaf in leaves(caches) if sliceable(leaf)]
    for column, leaf in enumerate(sliced):
        pieces = [cut(segment.layers[column], 0, n) for segment, n in runs]
        fill(leaf, _joined(pieces, capacity - length), length)
    if snapshot is not None:
        restore(caches, snapshot.leaves)
        for leaf in leaves(caches):
            if not sliceable(leaf) and snapshot.length > length:
                leaf.trim(snapshot.length - length)
    return caches


def _joined(pieces: Sequence[Runs], spare: int) -> Runs:
    """The tokens of all pieces, one after the other, and zeros for ``spare`` more."""
    runs = [list(zip(*same, strict=True)) for same in zip(*pieces, strict=True)]
    return tuple(
        tuple(_concatenated(same, spare if run is runs[-1] else 0) for same in run) for run in runs
    )


def _concatenated(arrays: Sequence[mx.array], spare: int) -> mx.array:
    first, more = arrays[0], []
    if spare > 0:
        more = [mx.zeros((*first.shape[:-2], spare, first.shape[-1]), first.dtype)]
    return mx.concatenate([*arrays, *more], axis=-2)
