"""The choice of a token by its weight, as a race.

Every token gets an exponentially distributed time, divided by its weight, and the first one
wins: each with a probability proportional to its weight (the exponential form of the Gumbel
trick). The times are a hash of the row's key and the token's id, so the same key and nearly
the same weights mostly give the same token, whatever the order of the tokens and the other
rows of the batch. If two distributions differ by d in total variation, their choices agree
with probability (1 - d) / (1 + d) or more: a draft and its model need only a common key
("Coupling without Communication and Drafter-Invariant Speculative Decoding", Daliri, Musco
and Suresh 2024).

Weights are probabilities up to a factor. Rows keep their axis ([batch, 1], not [batch]), because
every change of shape is one more operation to submit.

Invariants: a token of weight 0 is never chosen; a row's result is bitwise the same in every batch.
That is why totals are read off scans along the row: a sum over [1, n] may add in another order
than over a row of [8, n].
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

# The finaliser of a 32-bit hash ("lowbias32", Wellons 2018), and a step between its inputs
_STEP, _FIRST, _SECOND = 0x9E3779B1, 0x7FEB352D, 0x846CA68B
_NEAR = 2.0**-8
_BLOCK = 128
_LONG = 4096  # numbers in a row; from here on, work goes block by block
_LATEST = 1 - 2.0**-24  # less than 1 in float32, so that every time is finite


def pick(weights: mx.array, keys: mx.array) -> tuple[mx.array, mx.array]:
    """Chooses one of each row of ``weights`` [batch, n], by ``keys`` [batch, 2] uint32.

    Returns its index and its weight, each [batch, 1]. The weight is 0 or NaN only if no
    weight of the row is more. In a long row, a column is chosen by its total, and then a
    weight in it: that needs some hundred times instead of one for every token.
    """
    n = weights.shape[-1]
    if not is_long(n):
        return pick_of(weights, ramp(n)[None], keys)
    blocks = columns(weights)
    width = blocks.shape[2]
    column = _winner(mx.sum(blocks, axis=1), ~ramp(width)[None], keys)
    ids = ramp(n, width)[None] + column
    row, weight = pick_of(mx.take_along_axis(weights, ids, axis=-1), ids, keys)
    return row * width + column, weight


def pick_of(weights: mx.array, ids: mx.array, keys: mx.array) -> tuple[mx.array, mx.array]:
    """``pick`` among the tokens ``ids`` [batch, n] uint32; the index is the one in the row.

    Neither the order of the tokens nor other tokens of weight 0 matter.
    """
    index = _winner(weights, ids, keys)
    return index, mx.take_along_axis(weights, index, axis=-1)


def times(ids: mx.array, keys: mx.array) -> mx.array:
    """Exponentially distributed numbers > 0 for ``ids`` [batch or 1, n] and ``keys`` [batch, 2]."""
    bits = _mixed(_mixed(ids * _STEP + keys[:, :1]) ^ keys[:, 1:])
    share = mx.minimum(bits.astype(mx.float32) * 2.0**-32 + 2.0**-33, _LATEST)
    # -log(1 - share). Near 0, where races are decided, the series is as fine as 32 bits
    # (log1p takes three times as long on a CPU).
    near = share * (1 + share * (1 / 2 + share * (1 / 3)))
    return mx.where(share < _NEAR, near, -mx.log(1 - share))


def _winner(weights: mx.array, ids: mx.array, keys: mx.array) -> mx.array:
    return mx.argmax(weights / times(ids, keys), axis=-1, keepdims=True)


def _mixed(x: mx.array) -> mx.array:
    x = (x ^ (x >> 16)) * _FIRST
    x = (x ^ (x >> 15)) * _SECOND
    return x ^ (x >> 16)


# ---- rows of weights ----------------------------------------------------------------------------


def total(weights: mx.array) -> mx.array:
    """The sum of each row of ``weights`` [batch, n] as [batch, 1]."""
    if is_long(weights.shape[-1]):
        weights = mx.sum(columns(weights), axis=1)
    return mx.cumsum(weights, axis=-1)[:, -1:]


def ramp(stop: int, step: int = 1) -> mx.array:
    """0, step and so on, below ``stop``: a constant, not computed again in every draw."""
    return mx.array(np.arange(0, stop, step, dtype=np.uint32))


def is_long(n: int) -> bool:
    """Whether rows of n numbers are processed block by block."""
    return n >= _LONG


def rows_of(n: int, most: int) -> int:
    """The largest power of two that divides n, up to ``most``."""
    return min(n & -n, most)


def columns(weights: mx.array) -> mx.array:
    """Long rows of ``weights`` [batch, n] as [batch, rows, columns], with up to 128 rows."""
    return weights.reshape(weights.shape[0], rows_of(weights.shape[-1], most=_BLOCK), -1)
