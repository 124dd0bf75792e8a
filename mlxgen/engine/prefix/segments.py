"""What the layers of a model hold of a run of tokens: cut out, kept, and put together again.

Owns the two forms in which the KV of a sequence is kept. A ``Segment`` is a run of tokens of
those layers that hold one key and one value for each token; runs can be cut and joined
anywhere. A ``Snapshot`` is the whole state of all other layers (windows, recurrent states)
after one token, and only of use there. Must never know tokens, or who keeps what for how long.

Invariant: every array of a segment or snapshot has a buffer of its own, as large as the
array, to which nothing writes. So ``nbytes`` is exact, and dropping one frees its memory.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import (
    ChunkedKVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from ..kv.layers import (
    CacheFactory,
    LayerCache,
    arrays_in,
    can_trim,
    copied,
    leaves,
    owned,
    sliceable,
)

Piece: TypeAlias = tuple[mx.array, ...]
"""One layer's keys, then its values, with time on axis -2: one array each, three if quantised.
Empty for a layer that the model never fills."""


def holds(caches: Sequence[LayerCache], length: int) -> bool:
    """Whether every sliceable layer holds exactly ``length`` tokens, or was never filled."""
    return all(
        leaf.keys is None or leaf.offset == length for leaf in leaves(caches) if sliceable(leaf)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """``count`` tokens of all sliceable layers, in the order of ``leaves``."""

    layers: tuple[Piece, ...]
    count: int
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", sum(array.nbytes for array in self.arrays()))

    @classmethod
    def of(cls, caches: Sequence[LayerCache], start: int, stop: int) -> Segment:
        """A copy of the tokens ``start`` to ``stop``, not evaluated yet."""
        cut = tuple(
            tuple(owned(array[..., start:stop, :]) for array in _arrays_of(leaf))
            for leaf in leaves(caches)
            if sliceable(leaf)
        )
        return cls(cut, stop - start)

    def arrays(self) -> list[mx.array]:
        return [array for piece in self.layers for array in piece]

    def split(self, at: int) -> tuple[Segment, Segment]:
        """The first ``at`` tokens and the rest, both copied and evaluated."""
        halves = tuple(
            Segment(
                tuple(tuple(owned(array[..., cut, :]) for array in piece) for piece in self.layers),
                count,
            )
            for cut, count in ((slice(0, at), at), (slice(at, None), self.count - at))
        )
        mx.eval([half.arrays() for half in halves])
        return halves[0], halves[1]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of all layers that are not sliceable, after ``length`` tokens."""

    leaves: tuple[LayerCache, ...]
    length: int
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", sum(array.nbytes for array in self.arrays()))

    @classmethod
    def of(cls, caches: Sequence[LayerCache], length: int) -> Snapshot:
        """A copy of the state, not evaluated yet, without keys that no later token can see."""
        kept = (_narrowed(leaf) for leaf in leaves(caches) if not sliceable(leaf))
        return cls(tuple(copied(leaf, owned) for leaf in kept), length)

    def arrays(self) -> list[mx.array]:
        return list(arrays_in(self.leaves))

    def serves(self, length: int) -> bool:
        """Whether it can be trimmed to ``length`` tokens, which must not exceed its own."""
        return all(can_trim(leaf, self.length - length) for leaf in self.leaves)


def assemble(
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
    column = 0
    states = iter(snapshot.leaves if snapshot is not None else ())
    for leaf in leaves(caches):
        if sliceable(leaf):
            _fill(leaf, [(segment.layers[column], n) for segment, n in runs], length, capacity)
            column += 1
        else:
            leaf.__dict__.update(copied(next(states)).__dict__)
            if snapshot is not None and snapshot.length > length:
                leaf.trim(snapshot.length - length)
    return caches


def _arrays_of(leaf: LayerCache) -> Piece:
    if leaf.keys is None:
        return ()
    if isinstance(leaf, QuantizedKVCache):
        return (*leaf.keys, *leaf.values)
    return (leaf.keys, leaf.values)


def _fill(leaf: LayerCache, runs: list[tuple[Piece, int]], length: int, capacity: int) -> None:
    """Set a fresh sliceable cache to the first tokens of each piece, one after the other."""
    joined = []
    for same in zip(*(piece for piece, _ in runs), strict=True):
        parts = [a[..., :n, :] for a, (_, n) in zip(same, runs, strict=True)]
        if capacity > length:
            shape = (*same[0].shape[:-2], capacity - length, same[0].shape[-1])
            parts.append(mx.zeros(shape, same[0].dtype))
        joined.append(mx.concatenate(parts, axis=-2))
    if not joined:
        return
    half = len(joined) // 2
    if isinstance(leaf, QuantizedKVCache):
        leaf.keys, leaf.values = tuple(joined[:half]), tuple(joined[half:])
    else:
        leaf.keys, leaf.values = joined
    leaf.offset = length


def _narrowed(leaf: LayerCache) -> LayerCache:
    """The same state with only the keys that later tokens can see; shares arrays with ``leaf``.

    A prefill in large chunks leaves more keys in a window than the next token sees, and every
    update leaves room for more.
    """
    if type(leaf) is RotatingKVCache and leaf.keys is not None:
        twin = copy.copy(leaf)
        keys, values = leaf._temporal_order(leaf.keys), leaf._temporal_order(leaf.values)
        spare = keys.shape[2] - leaf.max_size
        if spare > 0:
            keys, values = leaf._trim(spare, keys), leaf._trim(spare, values)
        twin.keys, twin.values, twin._idx = keys, values, keys.shape[2]
        return twin
    if type(leaf) is ChunkedKVCache and leaf.keys is not None:
        twin = copy.copy(leaf)
        twin.maybe_trim_front()
        twin.keys, twin.values = twin.keys_and_values()
        return twin
    return leaf
