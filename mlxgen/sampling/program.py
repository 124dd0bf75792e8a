"""The draw of rows with the same reach as one function of arrays: greedy, or by weight.

Invariants: everything that is not an array is fixed when a program is made, so that it can be
compiled; a row is drawn in the same way in every program, whatever the other rows. The same
settings leave the same tokens as in mlx-lm (of tokens with equal logits at the edge of top-k, those
with the lower ids).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx
import numpy as np

from .race import pick, ramp
from .rows import Want

CANDIDATES = 128

WORD = 32  # tokens in one word of a mask
_ROWS = 32  # blocks that a long row of logits is split into, to be searched by columns
_LONG = 8192  # logits from which on a row is long
_WIDTH = 0.2  # of adaptive-p's preference, as a difference of probabilities
_STEEPNESS = 10.0

Outputs: TypeAlias = dict[str, mx.array]
Program: TypeAlias = Callable[..., Outputs]


class Reach(Enum):
    """Which tokens a row is drawn from, whatever the numbers."""

    BEST = auto()
    """The most likely token."""
    PLAIN = auto()
    """By weight, from all tokens; min-p and XTC need no more."""
    FEW = auto()
    """By weight, from the most likely tokens."""
    ALL = auto()
    """By weight, from all tokens in order, as the most likely ones are too few."""


class Numbers(NamedTuple):
    """The numbers of rows: columns [rows, 1] of one float32 table, or floats of one row."""

    inverse_temperature: Any
    top_p: Any  # 1: off
    log_min_p: Any  # -inf: off
    top_k: Any
    sigmas: Any  # 0 or less: off
    min_k: Any  # negative: off
    log_threshold: Any  # of XTC; inf: not in this draw
    target: Any  # of adaptive-p; negative: off


class Variant(NamedTuple):
    """All that a draw depends on, apart from arrays.

    ``bounds``, ``excludes``, ``aims``: top-nσ or min-k, XTC, or adaptive-p may apply to some rows.
    ``reports``: something is reported; parts that nobody evaluates cost next to nothing.
    """

    reach: Reach
    bounds: bool
    excludes: bool
    aims: bool
    reports: bool


def make_draw(variant: Variant, spared: mx.array | None) -> Program:
    """Make the draw of rows from ``logits`` [rows, vocab], with the model's ``own`` if those were
    changed, with ``words`` [rows, words, 1] if some rows have a mask, and unless the rows are
    greedy, with a ``table`` of ``Numbers`` and ``keys`` [rows, 2].

    ``spared`` [padded vocab] marks the tokens that XTC never excludes, if there are any. The
    outputs are fields of ``Draw`` by name. There are ``CANDIDATES`` candidates and top tokens, or
    as many as the vocabulary has.
    """

    def draw(
        logits: mx.array,
        own: mx.array | None = None,
        words: mx.array | None = None,
        table: mx.array | None = None,
        keys: mx.array | None = None,
    ) -> Outputs:
        vocab, masked = logits.shape[-1], logits
        if words is not None:
            masked = apply_mask(logits, words)
        if table is None or keys is None:
            found = _greedy(masked, variant)
        else:
            n = Numbers(*mx.split(table, len(Numbers._fields), axis=-1))
            floor = n.log_min_p
            if variant.bounds:
                floor = mx.maximum(floor, floors(logits, n.sigmas, n.min_k))
            found = _weighed(padded(masked), n, floor, keys, variant, spared)
        if variant.reports:
            found["distribution"] = found["distribution"][:, :vocab]
            found |= _report(found["token"], logits if own is None else own)
        return found

    return draw


def wanted(outputs: Outputs, want: Want) -> Outputs:
    """The outputs of a program that reports, without the reports that are not wanted."""
    found: Outputs = {n: outputs[n] for n in ("token", "exact", "share") if n in outputs}
    for name in ("prob", "logprob", "distribution"):
        if getattr(want, name):
            found[name] = outputs[name]
    for count, names in (
        (want.candidates, ("candidates", "candidate_probs")),
        (want.top, ("top_tokens", "top_logprobs")),
    ):
        found |= {name: outputs[name][:, :count] for name in names if count}
    return found


# ---- changes of logits ---------------------------------------------------------------------------


def change(logits: mx.array, ids: mx.array, factors: mx.array, less: mx.array) -> mx.array:
    """The logits [batch, vocab] after a ``Change`` of each row, [batch, n] each. An id may occur
    more than once, with the same numbers."""
    chosen = mx.take_along_axis(logits, ids, axis=-1)
    chosen = mx.where(chosen < 0, chosen * factors, chosen / factors) - less
    return mx.put_along_axis(logits, ids, chosen, axis=-1)


def apply_mask(logits: mx.array, words: mx.array) -> mx.array:
    """Set the logits [batch, vocab] of tokens that ``words`` [batch, words, 1] forbid to -inf.

    Bit ``t % 32`` of word ``t // 32`` allows token t. The words cover the whole vocabulary.
    """
    batch, vocab = logits.shape
    places = mx.array(np.arange(WORD, dtype=np.int32))
    shifted = (words >> places).reshape(batch, -1)
    if shifted.shape[-1] != vocab:
        shifted = shifted[:, :vocab]
    return mx.where((shifted & 1) != 0, logits, mx.array(-mx.inf, logits.dtype))


def padded_size(vocab_size: int) -> int:
    """The vocabulary's size, rounded up to whole words."""
    return vocab_size + -vocab_size % WORD


def padded(logits: mx.array) -> mx.array:
    """Logits [batch, vocab] as float32, filled up to whole words with -inf, so that rows divide
    into equal blocks."""
    logits = logits.astype(mx.float32)
    surplus = padded_size(logits.shape[-1]) - logits.shape[-1]
    if not surplus:
        return logits
    return mx.pad(logits, [(0, 0), (0, surplus)], constant_values=-mx.inf)


def floors(logits: mx.array, sigmas: mx.array, least: mx.array) -> mx.array:
    """How far below the highest of the logits [batch, vocab] a token may lie, [batch, 1].

    Top-nσ (Tang et al. 2024) allows ``sigmas`` [batch, 1] standard deviations of all finite logits.
    Min-k (Ding et al. 2026) keeps the tokens before the steepest drop from one sorted logit to the
    next, relative to the range of the logits and divided by its place, and no fewer than ``least``
    [batch, 1] over that range. The narrower of the two applies; -inf where neither is on.
    """
    logits = logits.astype(mx.float32)
    finite = mx.isfinite(logits)
    lowest = mx.min(mx.where(finite, logits, mx.inf), axis=-1, keepdims=True)
    logits = mx.where(finite, logits, lowest)
    count = mx.sum(finite, axis=-1, keepdims=True)
    mean = mx.sum(mx.where(finite, logits, 0.0), axis=-1, keepdims=True) / count
    squares = mx.sum(mx.where(finite, (logits - mean) ** 2, 0.0), axis=-1, keepdims=True)
    floor = mx.where(sigmas > 0, -sigmas * mx.sqrt(squares / count), -mx.inf)

    ordered = -mx.sort(-logits, axis=-1)
    span = ordered[:, :1] - ordered[:, -1:] + 1e-8
    drops = (ordered[:, :-1] - ordered[:, 1:]) / mx.arange(1, ordered.shape[-1])
    kept = mx.argmax(drops, axis=-1, keepdims=True) + 1
    kept = mx.maximum(kept, mx.floor(mx.maximum(least, 0.0) / span).astype(mx.uint32))
    last = mx.take_along_axis(ordered, mx.minimum(kept, ordered.shape[-1]) - 1, axis=-1)
    # A little lower, or the last token could be lost when this is added to the highest logit
    rounding = 2.4e-7 * (mx.abs(last) + mx.abs(ordered[:, :1]))
    cliff = last - ordered[:, :1] - rounding
    return mx.maximum(floor, mx.where(least >= 0, cliff, -mx.inf))


# ---- draws ---------------------------------------------------------------------------------------


def _greedy(logits: mx.array, variant: Variant) -> Outputs:
    token = mx.argmax(logits, axis=-1, keepdims=True)
    value = mx.take_along_axis(logits, token, axis=-1)
    found = {"token": _checked(token, mx.isfinite(value)).reshape(-1)}
    if variant.reports:
        shares = mx.softmax(padded(logits), axis=-1)
        found["prob"] = mx.take_along_axis(shares, token, axis=-1).reshape(-1)
        found |= {"distribution": shares} | _candidates(ramp(shares.shape[-1]), shares)
    return found


def _weighed(
    logits: mx.array,
    n: Numbers,
    floor: mx.array,
    keys: mx.array,
    variant: Variant,
    spared: mx.array | None,
) -> Outputs:
    """A draw by weight; no token may lie further below the highest than the ``floor`` [rows, 1].

    Top-p, min-p, XTC and top-k follow in this order, each on what is left by the ones before it,
    and then the temperature. Top-p is nucleus sampling (Holtzman et al. 2019), and tokens equal to
    the last one are kept too; min-p is that of Nguyen et al. 2024; of the tokens above its
    threshold, XTC keeps the least likely. All others are at most as likely as the last candidate:
    so a draw from candidates is exact if all limits are above that.
    """
    vocab = logits.shape[-1]
    ids, values, ordered = ramp(vocab)[None], logits, variant.reach is not Reach.PLAIN
    few = variant.reach is Reach.FEW and vocab > CANDIDATES
    if ordered:
        ids, values = best(logits, CANDIDATES if few else vocab)
    peak = values[:, :1] if ordered else mx.max(values, axis=-1, keepdims=True)
    kept = (values > -mx.inf) & (values >= peak + floor)
    exact = mx.array(True)
    if ordered:
        odds = mx.exp(values - peak)  # relative to the most likely token
        mass = mx.sum(mx.exp(logits - peak) if few else odds, axis=-1, keepdims=True)
        before = mx.cumsum(odds, axis=-1, inclusive=False)
        # The first candidate is kept even if top_p is 0 in float32
        nucleus = mx.where((before < n.top_p * mass) | (before <= 0), values, mx.inf)
        lowest = mx.min(nucleus, axis=-1, keepdims=True)
        kept = kept & ((values >= lowest) | (n.top_p >= 1))
    if variant.excludes:
        limit = n.log_threshold
        left = mx.logsumexp(mx.where(kept, values, -mx.inf), axis=-1, keepdims=True)
        if ordered:
            bounded = (n.top_p < 1) | (floor > -mx.inf)
            left = mx.where(bounded, left, mx.log(mass) + peak)
            low = ~bounded & (values[:, -1:] - left <= limit)
            exact = _ends_inside(values, kept) | low | (limit > 0)
        log_shares = mx.where(kept, values - left, -mx.inf)
        least = mx.min(mx.where(log_shares > limit, log_shares, mx.inf), axis=-1, keepdims=True)
        top = log_shares > least
        kept = kept & ~(top if spared is None else top & ~spared[ids])
    if ordered:
        kept = kept & (mx.cumsum(kept.astype(mx.int32), axis=-1) <= n.top_k)
        exact = exact & _ends_inside(values, kept) if few else mx.array(True)

    values = mx.where(kept, values, -mx.inf)
    if variant.excludes:
        peak = mx.max(values, axis=-1, keepdims=True)
    scores = (values - peak) * n.inverse_temperature  # NaN, if nothing can be drawn
    shares = mx.softmax(scores, axis=-1)
    if variant.aims:
        scores = mx.where(n.target >= 0, _preference(shares, n.target), scores)
    place = pick(scores, ids, keys)
    sound, token = mx.isfinite(mx.take_along_axis(scores, place, axis=-1)), place
    if ordered:
        sound = sound & mx.isfinite(mass)
        token = mx.take_along_axis(ids, place, axis=-1)
    found = {"token": _checked(token, sound).reshape(-1)}
    if ordered:
        found["exact"] = (exact | ~sound).reshape(-1)
    if variant.aims:
        found["share"] = mx.take_along_axis(shares, place, axis=-1).reshape(-1)
    if variant.reports:
        final = mx.softmax(scores, axis=-1)
        found["prob"] = mx.take_along_axis(final, place, axis=-1).reshape(-1)
        found |= {"distribution": final} | _candidates(ids, final)
        if ordered:
            zeros = mx.zeros(logits.shape, mx.float32)
            found["distribution"] = mx.put_along_axis(zeros, ids, final, axis=-1)
    return found


def _ends_inside(values: mx.array, kept: mx.array) -> mx.array:
    """Whether no token outside the candidates can be as likely as a kept one, [batch, 1]."""
    last = values[:, -1:]
    lowest = mx.min(mx.where(kept, values, mx.inf), axis=-1, keepdims=True)
    return (lowest > last) | (last == -mx.inf)


def _preference(shares: mx.array, targets: mx.array) -> mx.array:
    """Adaptive-p's scores [rows, n] of tokens, by the distance of their ``shares`` [rows, n] from
    the ``targets`` [rows, 1]; tokens without probability get none."""
    distance = mx.abs(shares - targets) / _WIDTH
    closeness = -_STEEPNESS * distance * distance / (1 + distance)
    return mx.where(shares > 0, closeness, -mx.inf)


def _checked(token: mx.array, drawn: mx.array) -> mx.array:
    return mx.where(drawn, token.astype(mx.int32), -1)


# ---- reports -------------------------------------------------------------------------------------


def _candidates(ids: mx.array, weights: mx.array) -> Outputs:
    """The likeliest of the tokens ``ids`` [batch or 1, n], by their probabilities [batch, n]."""
    order, probs = best(weights, CANDIDATES)
    ids = mx.take_along_axis(mx.broadcast_to(ids, weights.shape), order, axis=-1)
    return {
        "candidates": _checked(ids, probs > 0),
        "candidate_probs": mx.where(probs > 0, probs, 0.0),
    }


def _report(token: mx.array, own: mx.array) -> Outputs:
    """The report on the model's own distribution."""
    own = own.astype(mx.float32)
    log_mass = mx.logsumexp(own, axis=-1, keepdims=True)
    logprob = mx.take_along_axis(own, mx.maximum(token, 0)[:, None], axis=-1) - log_mass
    ids, values = best(own, CANDIDATES)
    return {
        "logprob": logprob.reshape(-1),
        "top_tokens": ids.astype(mx.int32),
        "top_logprobs": values - log_mass,
    }


# ---- the likeliest tokens ------------------------------------------------------------------------


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
