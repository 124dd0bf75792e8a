"""The most likely tokens of a row, and which of them truncation keeps.

Invariant: the same settings leave the same tokens as in mlx-lm (of tokens with equal logits at the
edge of top-k, those with the lower ids). Candidates are ordered best first, and by id if logits are
equal; if ``truncate`` says that its answer is exact, it is the answer for the whole vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from .race import ramp

CANDIDATES = 128

_ROWS = 32  # of a long row of logits, where it is searched by columns
_LONG = 8192  # numbers in a row, from here on


class Truncation(NamedTuple):
    """The temperature of each row and its limits of truncation: arrays [batch, 1]."""

    inverse_temperature: mx.array
    top_p: mx.array  # 1: off
    log_min_p: mx.array  # -inf: off
    top_k: mx.array  # the vocabulary's size: off


class Exclusion(NamedTuple):
    """The rows in which this draw excludes top choices (XTC), and the tokens that it spares."""

    log_threshold: mx.array  # [batch, 1]; inf: not in this draw
    spared: mx.array | None  # [batch or 1, n] bool


def best(logits: mx.array, k: int) -> tuple[mx.array, mx.array]:
    """The ``k`` highest of ``logits`` [batch, vocab], best first: ids and values [batch, k].

    Of equal logits the lower id comes first; which of those equal to the last one are
    included is undefined. MLX sorts whole rows to find the highest on a GPU, so a long row is
    searched in the k columns with the highest maxima. They hold the k highest values: fewer than k
    columns hold values above the k-th best.
    """
    batch, vocab = logits.shape
    k = min(k, vocab)
    if k == vocab:
        ids = mx.broadcast_to(ramp(vocab), (batch, vocab))
    elif vocab >= _LONG and vocab % _ROWS == 0:
        width = vocab // _ROWS
        blocks = logits.reshape(batch, _ROWS, width)
        columns = _highest(mx.max(blocks, axis=1), k)
        pool = mx.take_along_axis(blocks, columns[:, None, :], axis=2).reshape(batch, -1)
        chosen = _highest(pool, k)
        ids = chosen // k * width + mx.take_along_axis(columns, chosen % k, axis=-1)
    else:
        ids = _highest(logits, k)
    ids = _in_order(ids, mx.take_along_axis(logits, ids, axis=-1))
    return ids, mx.take_along_axis(logits, ids, axis=-1)


def truncate(
    values: mx.array,
    limits: Truncation,
    *,
    log_mass: mx.array | None = None,
    exclusion: Exclusion | None = None,
) -> tuple[mx.array, mx.array]:
    """Which tokens top-p, min-p, XTC and top-k keep, in this order, each of what is left by the
    ones before it.

    Top-p is nucleus sampling (Holtzman et al. 2019), and tokens equal to the last one are kept too;
    min-p is that of Nguyen et al. 2024; of the tokens above its threshold, XTC keeps the least
    likely.

    ``values`` [batch, n] are the logits of all tokens in any order; top-p and top-k are off then.
    Or they are the best ones from ``best``, and ``log_mass`` [batch, 1] is the log-sum-exp of all
    the logits. Without ``exclusion``, XTC is left out.

    Returns kept [batch, n], and exact [batch, 1]: whether a longer list of candidates
    would have changed nothing. Other tokens are at most as likely as the last candidate,
    so it is enough that truncation ended above it.
    """
    kept = (values > -mx.inf) & (
        values >= mx.max(values, axis=-1, keepdims=True) + limits.log_min_p
    )
    known = mx.array(True)
    if log_mass is not None:
        before = mx.cumsum(mx.exp(values - log_mass), axis=-1, inclusive=False)
        # The first candidate is kept even if top_p is 0 in float32
        nucleus = mx.where((before < limits.top_p) | (before <= 0), values, mx.inf)
        lowest = mx.min(nucleus, axis=-1, keepdims=True)
        kept = kept & ((values >= lowest) | (limits.top_p >= 1))
    if exclusion is not None:
        limit = exclusion.log_threshold
        left = mx.logsumexp(mx.where(kept, values, -mx.inf), axis=-1, keepdims=True)
        if log_mass is not None:
            bounded = (limits.top_p < 1) | (limits.log_min_p > -mx.inf)
            left = mx.where(bounded, left, log_mass)
            low = ~bounded & (values[:, -1:] - left <= limit)
            known = _ends_inside(values, kept) | low | (limit > 0)
        log_shares = mx.where(kept, values - left, -mx.inf)
        least = mx.min(mx.where(log_shares > limit, log_shares, mx.inf), axis=-1, keepdims=True)
        top = log_shares > least
        kept = kept & ~(top if exclusion.spared is None else top & ~exclusion.spared)
    if log_mass is None:
        return kept, known
    kept = kept & (mx.cumsum(kept.astype(mx.int32), axis=-1) <= limits.top_k)
    return kept, known & _ends_inside(values, kept)


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
