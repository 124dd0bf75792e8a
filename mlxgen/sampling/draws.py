"""The uniforms behind the random draws.

Owns the map from (seed, position, attempt) to numbers in [0, 1). Must never hold state
or know what is drawn: a position that is taken back is drawn again with a higher
attempt, and nothing needs restoring. Invariant: the same arguments give the same number
on every machine, alone or in a batch.

The numbers are a counter put through a keyed hash (BLAKE2b), 24 bits each, so that
float32 holds them exactly and never rounds one up to 1.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TypeAlias

Uniforms: TypeAlias = tuple[float, float, float]

LANES = 16  # independent numbers that one hash gives

# What each number is for
INNER = 0  # which token of a block
OUTER = 1  # which block of tokens
XTC = 2  # whether this draw excludes top choices

_COUNTER = struct.Struct("<4q")
_WORDS = struct.Struct(f"<{LANES}I")
_FIRST = struct.Struct("<3I")
_SCALE = 2.0**-24
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


def uniform(seed: int, position: int, attempt: int, lane: int = 0) -> float:
    """A number in [0, 1) for one use (``lane``) at one draw; any integer is a seed."""
    digest = _digest(seed, position, attempt, lane // LANES)
    return float((_WORDS.unpack(digest)[lane % LANES] >> 8) * _SCALE)


def uniforms(seed: int, position: int, attempt: int) -> Uniforms:
    """The numbers that one draw takes: lanes ``INNER``, ``OUTER`` and ``XTC``."""
    inner, outer, xtc = _FIRST.unpack_from(_digest(seed, position, attempt, 0))
    return (inner >> 8) * _SCALE, (outer >> 8) * _SCALE, (xtc >> 8) * _SCALE


def derive_seed(seed: int, branch: int) -> int:
    """Another seed, for a branch of what ``seed`` draws."""
    digest = hashlib.blake2b(_digest(seed, branch, 0, 0), digest_size=8, person=b"branch").digest()
    return int.from_bytes(digest, "little", signed=True)


def _digest(seed: int, position: int, attempt: int, block: int) -> bytes:
    if not _SMALLEST <= seed <= _LARGEST:
        seed = _folded(seed)
    return hashlib.blake2b(_COUNTER.pack(seed, position, attempt, block)).digest()


def _folded(seed: int) -> int:
    data = seed.to_bytes(seed.bit_length() // 8 + 1, "little", signed=True)
    digest = hashlib.blake2b(data, digest_size=8, person=b"seed").digest()
    return int.from_bytes(digest, "little", signed=True)
