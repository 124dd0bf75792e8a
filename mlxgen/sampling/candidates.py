"""The most likely tokens of a row, and which of them truncation keeps.

``best`` and ``truncate`` are the fast form of the truncations that ``distribution`` spells
out over the whole vocabulary. Invariant: candidates are ordered best first, and by id if
logits are equal; if ``truncate`` says that its answer is exact, it is the answer for the
whole vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from .race import ramp, rows_of

CANDIDATES = 128

_LONG = 8192  # numbers in a row; from here on, searching columns first is faster


class Truncation(NamedTuple):
    """The temperature of each row and its limits of truncation: arrays [batch, 1]."""

    inverse_temperature: mx.array
    top_p: mx.array  # 1: off
    log_min_p: mx.array  # -inf: off
    top_k: mx.array  # the vocabulary's size: off


class Exclusion(NamedTuple):
    """The rows in which this draw excludes top choices (XTC), and the tokens that it spares."""

    log_threshold: mx.array  # [batch, 1]; inf: not in this draw
    spared: mx.array | None  # [vocab] bool


def best(logits: mx.array, k: int) -> tuple[mx.array, mx.array]:
    """The ``k`` highest of ``logits`` [batch, vocab], best first: ids and values [batch, k].

    Of equal logits the lower id comes first; which of those equal to the last one are
    included is undefined. A long row is searched in the k columns with the highest maxima,
    which hold the k highest values: fewer than k columns hold values above the k-th best.
    """
    batch, vocab = logits.shape
    rows = rows_of(vocab, most=32)
    if k >= vocab:
        ids = mx.broadcast_to(mx.arange(vocab, dtype=mx.uint32), (batch, vocab))
        values = logits
    elif vocab >= _LONG and vocab >= 2 * rows * k:
        width = vocab // rows
        blocks = logits.reshape(batch, rows, width)
        columns = _highest(mx.max(blocks, axis=1), k)
        pool = mx.take_along_axis(blocks, columns[:, None, :], axis=2).reshape(batch, -1)
        chosen = _highest(pool, k)
        values = mx.take_along_axis(pool, chosen, axis=-1)
        ids = chosen // k * width + mx.take_along_axis(columns, chosen % k, axis=-1)
    else:
        ids = _highest(logits, k)
        values = mx.take_along_axis(logits, ids, axis=-1)
    ids = _in_order(ids, values)
    return ids, mx.take_along_axis(logits, ids, axis=-1)


def truncate(
    ids: mx.array,
    values: mx.array,
    limits: Truncation,
    *,
    log_mass: mx.array,
    exclusion: Exclusion | None,
) -> tuple[mx.array, mx.array]:
    """Which candidates top-p, min-p, XTC and top-k keep, in this order.

    ``ids``, ``values``: from ``best``. ``log_mass`` [batch, 1]: log-sum-exp of all the
    logits. Without ``exclusion``, XTC is left out.

    Returns kept [batch, k], and exact [batch, 1]: whether a longer list of candidates
    would have changed nothing. Other tokens are at most as likely as the last candidate,
    so it is enough that truncation ended above it.
    """
    kept = (values > -mx.inf) & (values >= values[:, :1] + limits.log_min_p)
    known = mx.array(True)

    shares = mx.exp(values - log_mass)
    before = mx.cumsum(shares, axis=-1, inclusive=False)
    # The first candidate is kept even if top_p is 0 in float32
    nucleus = mx.where((before < limits.top_p) | (before <= 0), values, mx.inf)
    lowest = mx.min(nucleus, axis=-1, keepdims=True)
    kept = kept & ((values >= lowest) | (limits.top_p >= 1))

    if exclusion is not None:
        bounded = (limits.top_p < 1) | (limits.log_min_p > -mx.inf)
        left = mx.cumsum(mx.where(kept, shares, 0.0), axis=-1)[:, -1:]
        log_shares = mx.where(kept, values - log_mass, -mx.inf)
        log_shares = log_shares - mx.where(bounded, mx.log(left), 0.0)
        limit = exclusion.log_threshold
        low = ~bounded & (log_shares[:, -1:] <= limit)
        known = _ends_inside(values, kept) | low | (limit > 0)
        spared = exclusion.spared[ids] if exclusion.spared is not None else None
        kept = kept & ~is_top_choice(log_shares, limit, spared)

    if exclusion is None:  # those kept so far are the first ones
        kept = kept & (ramp(kept.shape[-1]) < limits.top_k)
    else:
        kept = kept & (mx.cumsum(kept.astype(mx.int32), axis=-1) <= limits.top_k)

    return kept, known & _ends_inside(values, kept)


def is_top_choice(log_shares: mx.array, limit: mx.array, spared: mx.array | None) -> mx.array:
    """What XTC excludes of [batch, n]: all above the limit [batch, 1] except the least of them."""
    over = log_shares > limit
    least = mx.min(mx.where(over, log_shares, mx.inf), axis=-1, keepdims=True)
    return log_shares > least if spared is None else (log_shares > least) & ~spared


def temper(values: mx.array, kept: mx.array, limits: Truncation, *, from_first: bool) -> mx.array:
    """Weights [batch, k] of the kept candidates at their temperature; the highest is 1.

    ``from_first``: the first candidate is kept in every row (there is no XTC).
    """
    values = mx.where(kept, values, -mx.inf)
    peak = values[:, :1] if from_first else mx.max(values, axis=-1, keepdims=True)
    return mx.exp((values - peak) * limits.inverse_temperature)


def kept_first(kept: mx.array) -> mx.array:
    """The order [batch, k] that puts kept candidates first and changes nothing else."""
    k = kept.shape[-1]
    return mx.argsort(mx.where(kept, ramp(k), ramp(k) + k), axis=-1)


def _ends_inside(values: mx.array, kept: mx.array) -> mx.array:
    """Whether no token outside the candidates can be as likely as a kept one, [batch, 1]."""
    last = values[:, -1:]
    lowest = mx.min(mx.where(kept, values, mx.inf), axis=-1, keepdims=True)
    return (lowest > last) | (last == -mx.inf)


def _highest(x: mx.array, k: int) -> mx.array:
    """Ids [batch, k] of the highest of ``x`` [batch, n], unordered."""
    return mx.argpartition(x, kth=x.shape[-1] - k, axis=-1)[:, x.shape[-1] - k :]


def _in_order(ids: mx.array, values: mx.array) -> mx.array:
    """``ids`` by descending value, then by ascending id: one sort of keys that hold both."""
    bits = values.view(mx.uint32)
    sign = mx.array(0x80000000, mx.uint32)
    descending = mx.where(bits <= sign, ~(bits | sign), bits)  # -0.0 is sign, and equal to 0.0
    keys = (descending.astype(mx.uint64) << 32) | ids.astype(mx.uint64)
    return (mx.sort(keys, axis=-1) & 0xFFFFFFFF).astype(mx.uint32)
