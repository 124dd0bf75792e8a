"""From logits to weights: the exponentials, maxima and totals of a draw.

Weights are probabilities up to a factor. Rows keep their axis ([batch, 1], not [batch]),
because every change of shape is one more operation to submit.

Invariant: a row's result is bitwise the same in every batch. That is why totals are read
off scans along the row: a sum over [1, n] may add in another order than over a row of
[8, n].
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

_BLOCK = 128

_LONG = 4096  # numbers in a row; from here on, work goes block by block
_LOWEST = -87.0  # exp of less is not a normal float32; such weights count as 0
_LN2_HIGH = 0.693359375  # 355 / 512, so that its product with a small integer is exact
_LN2_LOW = math.log(2) - _LN2_HIGH


def exponential(x: mx.array) -> mx.array:
    """exp(x) for x <= 0, float32 [batch, n]; NaN stays NaN and -inf gives 0.

    This is ``mx.exp``, except for long rows on a CPU, where ``mx.exp`` takes 20 ns a number
    and most of a draw's time; the polynomial takes a tenth of it.
    """
    if not is_long(x.shape[-1]) or mx.default_device().type == mx.gpu:
        return mx.exp(x)
    return polynomial_exponential(x)


def polynomial_exponential(x: mx.array) -> mx.array:
    """exp(x) for x <= 0 within 3e-7 of the true value; 0 for x < -87.

    exp(x) = 2**n * exp(r), with n the integer nearest to x / ln 2 and |r| <= ln(2) / 2: the
    power from its bits, the rest from its series, all in operations that compile into loops.
    """
    clipped = mx.maximum(x, _LOWEST)
    n = (clipped * (1 / math.log(2)) - 0.5).astype(mx.int32)  # rounds towards 0: x <= 0
    power = ((n + 127) << 23).view(mx.float32)
    n = n.astype(mx.float32)
    r = (clipped - n * _LN2_HIGH) - n * _LN2_LOW
    series = r * (1 / math.factorial(7)) + 1 / math.factorial(6)
    for k in range(5, -1, -1):
        series = series * r + 1 / math.factorial(k)
    return mx.where(x < _LOWEST, 0.0, series * power)


def highest(x: mx.array) -> mx.array:
    """The maximum of each row [batch, n] as [batch, 1]; NaN if the row holds NaN."""
    rows = rows_of(x.shape[-1], most=32)
    if is_long(x.shape[-1]) and rows > 1:  # down the columns first: faster on a CPU
        x = mx.max(x.reshape(x.shape[0], rows, -1), axis=1)
    return mx.max(x, axis=-1, keepdims=True)


def log_total(logits: mx.array) -> mx.array:
    """Log-sum-exp of each row [batch, n] as [batch, 1]; finite if the row can be drawn from."""
    if not is_long(logits.shape[-1]) or mx.default_device().type == mx.gpu:
        return mx.logsumexp(logits, axis=-1, keepdims=True)
    peak = highest(logits)
    weights = polynomial_exponential(logits - peak)
    sums = mx.sum(columns(weights), axis=1)
    return peak + mx.log(mx.cumsum(sums, axis=-1)[:, -1:])


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
