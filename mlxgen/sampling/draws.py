"""The random numbers of the draws: a pure function of (seed, position, attempt).

There is no state: a position that is taken back is drawn again with a higher attempt, and
nothing needs restoring. Invariant: the same arguments give the same numbers on every
machine, alone or in a batch.

The numbers are a hash (BLAKE2b) of a counter. A uniform takes 24 bits of it, so that
float32 holds it exactly and never rounds it up to 1.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

_COUNTER = struct.Struct("<4q")
_WORDS = struct.Struct("<3I")
_SCALE = 2.0**-24
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


class Chance(NamedTuple):
    """The numbers of one draw: two 32-bit words that decide which token wins the ``race``, and
    a number in [0, 1) that decides whether XTC excludes top choices."""

    key: tuple[int, int]
    xtc: float


def chance(seed: int, position: int, attempt: int) -> Chance:
    """The numbers of a draw. Any integer is a seed."""
    first, second, xtc = _WORDS.unpack_from(_digest(seed, position, attempt))
    return Chance((first, second), (xtc >> 8) * _SCALE)


def derive_seed(seed: int, branch: int) -> int:
    """The seed of a branch of what ``seed`` draws."""
    digest = hashlib.blake2b(_digest(seed, branch, 0), digest_size=8, person=b"branch").digest()
    return int.from_bytes(digest, "little", signed=True)


def _digest(seed: int, position: int, attempt: int) -> bytes:
    if not _SMALLEST <= seed <= _LARGEST:
        seed = _folded(seed)
    return hashlib.blake2b(_COUNTER.pack(seed, position, attempt, 0)).digest()


def _folded(seed: int) -> int:
    data = seed.to_bytes(seed.bit_length() // 8 + 1, "little", signed=True)
    digest = hashlib.blake2b(data, digest_size=8, person=b"seed").digest()
    return int.from_bytes(digest, "little", signed=True)
