"""Blocks: what is kept of a token sequence, piece by piece.

Owns the keys and what a block holds. Must never know who keeps a block, or for how long. A sequence
is cut at multiples of ``BLOCK`` tokens; what is left at its end is a *tail*, a block of fewer
tokens. A key is a hash of the key of the tokens before a block and of the tokens in it; the first
one follows the key of the model. So a key stands for all tokens up to the end of a block and for
the model that ran them, in memory as on disk.

Layers that hold one key and one value for each token have their part in every block. The others,
windows and recurrent states, have theirs in a ``Snapshot``: a sequence can go on only where there
is one. Invariant: every array of a block has a buffer of its own, as large as the array, to which
nothing writes. So dropping a block frees its memory, and it shares nothing with a row that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeAlias

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ...tokens import Token
from ..kv.alone import Alone
from ..kv.layers import (
    LayerCache,
    Run,
    arrays_in,
    can_trim,
    copied,
    narrowed,
    owned,
)
from ..kv.slots import Slot

BLOCK = 256
_KEY = 20  # bytes of a key: nobody finds two inputs of the same one

TokenIds: TypeAlias = npt.NDArray[np.int64]  # as wide as those of patches of images


def as_ids(tokens: Sequence[Token] | TokenIds) -> TokenIds:
    return np.asarray(tokens, dtype=np.int64)


def root_of(model: str) -> str:
    """The key of no tokens yet, of the model that a text tells from all others."""
    return blake2b(model.encode(), digest_size=_KEY).hexdigest()


def key_of(parent: str, tokens: TokenIds) -> str:
    """The key of ``tokens`` after those of ``parent``."""
    data = bytes.fromhex(parent) + tokens.astype("<i8").tobytes()
    return blake2b(data, digest_size=_KEY).hexdigest()


def in_common(left: TokenIds, right: TokenIds) -> int:
    """The length of the longest common beginning."""
    size = min(len(left), len(right))
    different = left[:size] != right[:size]
    first = int(different.argmax()) if size else 0
    return first if size and different[first] else size


def begins(tokens: TokenIds, others: TokenIds) -> bool:
    """Whether others begin with these tokens; most are told apart by a single one."""
    size = len(tokens)
    if size > len(others) or tokens[-1] != others[size - 1]:
        return False
    return bool((tokens == others[:size]).all())


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What the layers that cannot be cut hold after ``length`` tokens."""

    leaves: tuple[LayerCache, ...]
    length: int

    @classmethod
    def of(cls, kv: Alone | Slot) -> Snapshot:
        """A copy, not evaluated yet, without keys that no later token can see."""
        return cls(tuple(copied(narrowed(leaf), owned) for leaf in kv.others()), kv.length)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in arrays_in(self.leaves))

    def serves(self, length: int) -> bool:
        """Whether it can be trimmed to ``length`` tokens, which must not exceed its own."""
        return all(can_trim(leaf, self.length - length) for leaf in self.leaves)


@dataclass(slots=True, eq=False)
class Block:
    """The KV of ``tokens``, which come after ``start`` others, in the order of the layers.

    ``snapshot``: after the last of the tokens. ``settled``: its arrays are known to be computed.
    ``saved``: it is on disk, or could not be written. ``size``: the bytes that it counts.
    ``instead_of``: the key of a tail of which it has all tokens.
    """

    parent: str
    start: int
    tokens: TokenIds
    layers: tuple[Run, ...]
    snapshot: Snapshot | None = None
    key: str = field(init=False)
    settled: bool = False
    saved: bool = False
    size: int = 0
    instead_of: str = ""

    def __post_init__(self) -> None:
        self.key = key_of(self.parent, self.tokens)

    @property
    def count(self) -> int:
        return len(self.tokens)

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)

    @property
    def has_state(self) -> bool:
        return self.snapshot is not None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> list[mx.array]:
        kept = () if self.snapshot is None else self.snapshot.leaves
        return [*arrays_in(self.layers), *arrays_in(kept)]

    def serves(self, length: int) -> bool:
        """Whether a sequence of ``length`` of its tokens can go on from its snapshot."""
        return self.snapshot is not None and self.snapshot.serves(length)

    def is_whole(self) -> bool:
        """Whether every layer that holds anything holds all of the tokens."""
        held = [[array.shape[-2] for array in layer] for layer in self.layers if layer]
        return all(lengths[0] == max(lengths) == self.count for lengths in held)


def joined(pieces: Iterable[Run], spare: int) -> Run:
    """The tokens of all pieces, one after the other, and zeros for ``spare`` more."""
    return tuple([_concatenated(same, spare) for same in zip(*pieces, strict=True)])


def _concatenated(arrays: Sequence[mx.array], spare: int) -> mx.array:
    first, more = arrays[0], []
    if spare > 0:
        more = [mx.zeros((*first.shape[:-2], spare, first.shape[-1]), first.dtype)]
    return mx.concatenate([*arrays, *more], axis=-2)
