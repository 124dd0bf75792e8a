"""The random numbers behind the draws.

Owns the map from (seed, position, attempt) to numbers. Must never hold state
or know what is drawn: a position that is taken back is drawn again with a higher
attempt, and nothing needs restoring. Invariant: the same arguments give the same number
on every machine, alone or in a batch.

The numbers are a counter put through a hash (BLAKE2b). A uniform has 24 bits of it, so that
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
    """The numbers of one draw: two words of 32 bits that say which token wins the ``race``, and a
    number in [0, 1) that says whether XTC excludes top choices."""

    key: tuple[int, int]
    xtc: float


def chance(seed: int, position: int, attempt: int) -> Chance:
    """The numbers of a draw; any integer is a seed."""
    first, second, xtc = _WORDS.unpack_from(_digest(seed, position, attempt))
    return Chance((first, second), (xtc >> 8) * _SCALE)


def derive_seed(seed: int, branch: int) -> int:
    """Another seed, for a branch of what ``seed`` draws."""
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
