"""Blocks: what is kept of a token sequence, piece by piece.

A sequence is cut at multiples of ``BLOCK`` tokens; the rest at its end is a *tail*, a block of
fewer tokens. A key is a hash of the key of the block before and of the block's own tokens; the
first block follows the key of the model. So a key stands for all tokens up to the end of a block
and for the model that ran them, in memory as on disk.

Layers that hold one key and one value for each token have their part in every block. The others,
windows and recurrent states, have theirs in the *snapshot* of a block that ends where it was taken,
and a sequence can go on only from there. The same block may also exist without a snapshot.
Invariant: every array of a block has a buffer of its own, as large as the array, to which nothing
writes. So dropping a block frees its memory, and it shares nothing with a row that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ...tokens import Token
from ..kv.layers import LayerCache, Run, arrays_in

BLOCK = 256
_KEY = 20  # bytes of a key: enough that nobody finds a collision

TokenIds: TypeAlias = npt.NDArray[np.int64]  # wide enough for patches of images


def as_ids(tokens: Sequence[Token] | TokenIds) -> TokenIds:
    return np.asarray(tokens, dtype=np.int64)


def root_of(model: str) -> str:
    """The key of the empty sequence, for the model that a text identifies."""
    return blake2b(model.encode(), digest_size=_KEY).hexdigest()


def key_of(parent: str, tokens: TokenIds, has_state: bool = False) -> str:
    """The key of ``tokens`` after those of ``parent``; ``has_state``: with a snapshot."""
    data = bytes.fromhex(parent) + tokens.astype("<i8").tobytes() + b"state" * has_state
    return blake2b(data, digest_size=_KEY).hexdigest()


def in_common(left: TokenIds, right: TokenIds) -> int:
    """The length of the longest common prefix."""
    size = min(len(left), len(right))
    different = left[:size] != right[:size]
    first = int(different.argmax()) if size else 0
    return first if size and different[first] else size


def begins(tokens: TokenIds, others: TokenIds) -> bool:
    """Whether others begin with these tokens; a single comparison tells most apart."""
    size = len(tokens)
    if size > len(others) or tokens[-1] != others[size - 1]:
        return False
    return bool((tokens == others[:size]).all())


class File(NamedTuple):
    """A block on disk: its bytes, and when it was last used, in nanoseconds. One that could not be
    read is ``refused`` until it is written or listed again."""

    nbytes: int
    used: int
    refused: bool = False


@dataclass(slots=True, eq=False)
class Block:
    """``count`` tokens that come after ``start`` others; their KV is in memory, on disk, or both.

    - ``has_state``: it has a snapshot, after the last of its tokens.
    - ``tokens``: None while only the name of its file has been read.
    - ``layers``: the KV of each layer that can be cut; None if it is not in memory.
    - ``snapshot``: the other layers.
    - ``settled``: its arrays are known to be computed. ``size``: the bytes that it counts for.
    - ``file``: None if it is not on disk.
    """

    key: str
    parent: str
    start: int
    count: int
    has_state: bool
    tokens: TokenIds | None = None
    layers: tuple[Run, ...] | None = None
    snapshot: tuple[LayerCache, ...] = ()
    settled: bool = False
    size: int = 0
    file: File | None = None

    @classmethod
    def of(cls, parent: str, start: int, tokens: TokenIds, has_state: bool = False) -> Block:
        key = key_of(parent, tokens, has_state)
        return cls(key, parent, start, len(tokens), has_state, tokens)

    @property
    def stop(self) -> int:
        return self.start + self.count

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> list[mx.array]:
        return [*arrays_in(self.layers), *arrays_in(self.snapshot)]

    @property
    def is_filed(self) -> bool:
        """Whether it is on disk, as far as known."""
        return self.file is not None and not self.file.refused

    def begins(self, tokens: TokenIds) -> bool:
        """Whether these tokens begin with its own."""
        if self.tokens is not None:
            return begins(self.tokens, tokens)
        return key_of(self.parent, tokens[: self.count], self.has_state) == self.key

    def is_whole(self) -> bool:
        """Whether every layer that holds anything holds all of the tokens."""
        held = [[array.shape[-2] for array in layer] for layer in self.layers or () if layer]
        return all(lengths[0] == max(lengths) == self.count for lengths in held)
