"""From logits to weights, and from weights and uniforms to one of them.

Owns the numerics of a draw: exponentials, totals, and the choice by inverse cumulative
weight. Must never know tokens, settings or masks. Invariants: what weighs nothing is
never chosen; a row's result is bitwise the same whoever shares its batch, which is why
totals are read off scans along the row (a sum of all of [1, n] may be added up in another
order than that of a row of [8, n]).

Weights are probabilities up to a factor. Rows keep their axis ([batch, 1], not [batch]),
as every change of shape is one more operation to submit.
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

BLOCK = 128

_LONG = 4096  # numbers in a row; from here on, work goes block by block
_LOWEST = -87.0  # exp of less is no normal float32; such weights count as nothing
_LN2_HIGH = 0.693359375  # 355 / 512, so that its product with a small integer is exact
_LN2_LOW = math.log(2) - _LN2_HIGH


def exponential(x: mx.array) -> mx.array:
    """exp(x) for x <= 0, float32 [batch, n]; NaN stays NaN and -inf gives 0.

    This is ``mx.exp``, except for long rows on a CPU: there that takes 20 ns a number and
    most of a draw's time, and the polynomial takes a tenth.
    """
    if not is_long(x.shape[-1]) or mx.default_device().type == mx.gpu:
        return mx.exp(x)
    return polynomial_exponential(x)


def polynomial_exponential(x: mx.array) -> mx.array:
    """exp(x) for x <= 0 within 3e-7 of the true value; 0 for x < -87.

    exp(x) = 2**n * exp(r), with n the integer next to x / ln 2 and |r| <= ln(2) / 2: the
    power by its bits, the rest by its series, all in operations that compile into loops.
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
    """The maximum of each row [batch, n] as [batch, 1]; NaN where the row holds one."""
    rows = rows_of(x.shape[-1], most=32)
    if is_long(x.shape[-1]) and rows > 1:  # down the columns first: quicker on a CPU
        x = mx.max(x.reshape(x.shape[0], rows, -1), axis=1)
    return mx.max(x, axis=-1, keepdims=True)


def log_total(logits: mx.array) -> mx.array:
    """Log-sum-exp of each row [batch, n] as [batch, 1]; finite where the row can be drawn from."""
    if not is_long(logits.shape[-1]) or mx.default_device().type == mx.gpu:
        return mx.logsumexp(logits, axis=-1, keepdims=True)
    peak = highest(logits)
    weights = polynomial_exponential(logits - peak)
    sums = mx.sum(_columns(weights), axis=1)
    return peak + mx.log(mx.cumsum(sums, axis=-1)[:, -1:])


def pick(
    weights: mx.array, inner: mx.array, outer: mx.array | None
) -> tuple[mx.array, mx.array, mx.array]:
    """Choose one of each row of ``weights`` [batch, n], by uniforms [batch, 1].

    Returns its index, its weight and the row's total, each [batch, 1]. The weight is 0 or
    NaN only where no weight of the row is more.

    In a long row ``outer`` chooses a column by its share of the total and ``inner`` a
    weight in it (``outer`` is needed for ``is_long`` rows only). With these 48 bits and
    shorter sums, the small weights that make up the end of a large vocabulary are not
    lost to rounding.
    """
    n = weights.shape[-1]
    if not is_long(n):
        return _pick_one(weights, inner)
    assert outer is not None
    blocks = _columns(weights)
    width = blocks.shape[2]
    column, _, everything = _pick_one(mx.sum(blocks, axis=1), outer)
    starts = ramp(n, width)
    chosen = mx.take_along_axis(weights, starts + column, axis=-1)
    row, weight, _ = _pick_one(chosen, inner)
    return row * width + column, weight, everything


def pick_sorted(
    weights: mx.array, inner: mx.array, outer: mx.array | None
) -> tuple[mx.array, mx.array, mx.array]:
    """``pick`` where the weights fall along the row; zeros at its end change nothing.

    Here ``outer`` chooses a run of 128. It is needed only for rows that are longer.
    """
    batch, n = weights.shape
    if n <= BLOCK:
        return _pick_one(weights, inner)
    assert outer is not None
    if n % BLOCK:
        weights = mx.pad(weights, [(0, 0), (0, -n % BLOCK)])
    masses = mx.cumsum(weights.reshape(batch, -1, BLOCK), axis=-1)[:, :, -1]
    run, _, everything = _pick_one(masses, outer)
    places = run * BLOCK + ramp(BLOCK)
    chosen = mx.take_along_axis(weights, places, axis=-1)
    place, weight, _ = _pick_one(chosen, inner)
    return run * BLOCK + place, weight, everything


def ramp(stop: int, step: int = 1) -> mx.array:
    """0, step and so on, under ``stop``: a constant, not computed again in every draw."""
    return mx.array(np.arange(0, stop, step, dtype=np.uint32))


def is_long(n: int) -> bool:
    """Whether rows of n numbers are worked on block by block."""
    return n >= _LONG


def rows_of(n: int, most: int) -> int:
    """The largest power of two that divides n, up to ``most``."""
    return min(n & -n, most)


def _columns(weights: mx.array) -> mx.array:
    return weights.reshape(weights.shape[0], rows_of(weights.shape[-1], most=BLOCK), -1)


def _pick_one(weights: mx.array, uniform: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    running = mx.cumsum(weights, axis=-1)
    everything = running[:, -1:]
    index = _first_over(running, weights, uniform * everything)
    return index, mx.take_along_axis(weights, index, axis=-1), everything


def _first_over(running: mx.array, weights: mx.array, target: mx.array) -> mx.array:
    """Index [batch, 1] of the first sum over the target, or of any positive weight.

    A scan in parallel may round up where nothing is added and may end below its own
    maximum; so zeros are passed over, and there is a choice even if no sum is over.
    """
    positive = weights > 0
    score = positive.astype(mx.int32) + (positive & (running > target)).astype(mx.int32)
    return mx.argmax(score, axis=-1, keepdims=True)
