"""The choice of a token by its weight, as a race, with random numbers that are not state.

The numbers of a draw are a hash (BLAKE2b) of its seed, position and attempt: a position that is
taken back is drawn again with a higher attempt, and nothing needs restoring. A uniform takes 24
bits of it, so that float32 holds it exactly and never rounds it up to 1.

In the race every token gets an exponentially distributed time, divided by its weight, and the first
one wins: each with a probability proportional to its weight (the exponential form of the Gumbel
trick). The times are a hash of the draw's key and the token's id, so the same key and nearly
the same weights mostly give the same token, whatever the order of the tokens and the other
rows of the batch. If two distributions differ by d in total variation, their choices agree
with probability (1 - d) / (1 + d) or more: a draft and its model need only a common key
("Coupling without Communication and Drafter-Invariant Speculative Decoding", Daliri, Musco
and Suresh 2024).

Invariants: the same arguments give the same numbers on every machine, alone or in a batch; a token
of weight 0 is never chosen.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

import mlx.core as mx
import numpy as np

_COUNTER = struct.Struct("<4q")
_WORDS = struct.Struct("<3I")
_SCALE = 2.0**-24
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
# The finaliser of a 32-bit hash ("lowbias32", Wellons 2018), and a step between its inputs
_STEP, _FIRST, _SECOND = 0x9E3779B1, 0x7FEB352D, 0x846CA68B
_LATEST = 1 - 2.0**-24  # less than 1 in float32, so that every time is finite


class Chance(NamedTuple):
    """The numbers of one draw: two 32-bit words that decide which token wins the race, and
    a number in [0, 1) that decides whether XTC excludes top choices."""

    key: tuple[int, int]
    xtc: float


def chance(seed: int, position: int, attempt: int) -> Chance:
    """The numbers of a draw. Any integer is a seed."""
    first, second, xtc = _WORDS.unpack_from(_digest(seed, position, attempt))
    return Chance((first, second), (xtc >> 8) * _SCALE)


def derive_seed(seed: int, branch: int) -> int:
    """The seed of a branch of the sequence that draws from ``seed``."""
    return _short(_digest(seed, branch, 0), b"branch")


def _digest(seed: int, position: int, attempt: int) -> bytes:
    if not _SMALLEST <= seed <= _LARGEST:
        seed = _short(seed.to_bytes(seed.bit_length() // 8 + 1, "little", signed=True), b"seed")
    return hashlib.blake2b(_COUNTER.pack(seed, position, attempt, 0)).digest()


def _short(data: bytes, use: bytes) -> int:
    digest = hashlib.blake2b(data, digest_size=8, person=use).digest()
    return int.from_bytes(digest, "little", signed=True)


def pick(scores: mx.array, ids: mx.array, keys: mx.array) -> mx.array:
    """Choose one of the tokens ``ids`` [batch or 1, n] uint32 in each row, by their ``scores``
    [batch, n], the logarithms of probabilities up to a factor, and ``keys`` [batch, 2] uint32.

    Returns its index in the row [batch, 1]. Neither the order of the tokens nor other tokens with a
    score of -inf matter. The score at the index is -inf or NaN only if all scores of the row are.
    """
    return mx.argmax(scores - mx.log(times(ids, keys)), axis=-1, keepdims=True)


def times(ids: mx.array, keys: mx.array) -> mx.array:
    """Exponentially distributed numbers > 0 for ``ids`` [batch or 1, n] and ``keys`` [batch, 2]."""
    bits = _mixed(_mixed(ids * _STEP + keys[:, :1]) ^ keys[:, 1:])
    share = mx.minimum(bits.astype(mx.float32) * 2.0**-32 + 2.0**-33, _LATEST)
    rest = 1 - share  # rounded: share / (1 - rest) corrects its log, which is -share where it is 1
    return mx.where(rest == 1, share, -mx.log(rest) * share / (1 - rest))


def _mixed(x: mx.array) -> mx.array:
    x = (x ^ (x >> 16)) * _FIRST
    x = (x ^ (x >> 15)) * _SECOND
    return x ^ (x >> 16)


def ramp(stop: int) -> mx.array:
    """The numbers from 0 to ``stop`` - 1: a constant, not computed again in every draw."""
    return mx.array(np.arange(stop, dtype=np.uint32))
