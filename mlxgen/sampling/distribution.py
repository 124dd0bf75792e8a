"""The final distribution over the whole vocabulary, spelled out.

This is the one definition of what the sampling settings mean and in which order they
apply. It takes no short cuts, because the fast paths are tested against it. Invariant: the
same settings leave the same tokens as in mlx-lm (of tokens with equal logits at the edge
of top-k, those with the lower ids).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import mlx.core as mx

from .aim import preferred
from .candidates import best
from .processors import (
    adjusted,
    apply_mask,
    floors,
    stack_biases,
    stack_floors,
    stack_limits,
    stack_masks,
    stack_penalties,
    stack_targets,
    stack_thresholds,
)
from .race import chance
from .rows import DrawRow

if TYPE_CHECKING:
    from ..tokens import Token


def final_distribution(
    logits: mx.array, rows: Sequence[DrawRow], *, xtc_special: Iterable[Token] = ()
) -> mx.array:
    """The probabilities [batch, vocab] with which each row of ``logits`` [batch, vocab] is drawn.

    The order is logit bias, penalties, DRY and mask; then top-p, min-p, top-nσ and min-k, XTC and
    top-k, each on what the ones before it left of the untempered distribution; then the
    temperature, and what adaptive-p prefers. What top-nσ and min-k allow follows from the logits
    before the mask.
    A greedy row's probabilities are those at temperature 1 without truncation. A row from
    which nothing can be drawn is NaN.
    """
    settings = [row.effective for row in rows]
    vocab_size = logits.shape[-1]
    logits = logits.astype(mx.float32)
    logits = adjusted(logits, rows, settings, stack_biases(settings), stack_penalties(settings))
    shaped = stack_floors(settings)
    floor = floors(logits, *shaped) if shaped else None
    if any(row.words is not None for row in rows):
        logits = apply_mask(logits, stack_masks(rows, vocab_size))
    limits = stack_limits(settings, vocab_size)
    if any(each.top_p < 1 for each in settings):
        logits = apply_top_p(logits, limits.top_p)
    if any(each.min_p > 0 for each in settings):
        logits = apply_min_p(logits, limits.log_min_p)
    if floor is not None:
        logits = apply_min_p(logits, floor)
    if any(each.xtc_probability > 0 for each in settings):
        chances = [chance(row.seed, row.position, row.attempt) for row in rows]
        spared = mx.zeros((vocab_size,), mx.bool_)
        if special := [token for token in xtc_special if token < vocab_size]:
            spared[mx.array(special)] = True
        logits = apply_xtc(logits, mx.exp(stack_thresholds(settings, chances)), spared)
    if any(each.top_k > 0 for each in settings):
        logits = apply_top_k(logits, limits.top_k)
    logits = logits - mx.max(logits, axis=-1, keepdims=True)
    shares = mx.softmax(logits * limits.inverse_temperature, axis=-1)
    if not any(each.aims for each in settings):
        return shares
    targets = stack_targets(rows)
    return mx.where(targets >= 0, preferred(shares, targets), shares)


def apply_top_p(logits: mx.array, top_p: mx.array) -> mx.array:
    """Keeps the most likely tokens of [batch, vocab] that together reach ``top_p`` [batch, 1].

    Nucleus sampling (Holtzman et al. 2019); tokens equal to the last one are kept too.
    """
    ordered = mx.sort(logits, axis=-1)[:, ::-1]
    before = mx.cumsum(mx.softmax(ordered, axis=-1), axis=-1, inclusive=False)
    nucleus = mx.where((before < top_p) | (before <= 0), ordered, mx.inf)
    kept = logits >= mx.min(nucleus, axis=-1, keepdims=True)
    return mx.where(kept | (top_p >= 1), logits, -mx.inf)


def apply_min_p(logits: mx.array, log_min_p: mx.array) -> mx.array:
    """Keeps the tokens of [batch, vocab] at least min-p times as likely as the most likely one.

    Nguyen et al. 2024. ``log_min_p`` [batch, 1] is the logarithm of min-p.
    """
    kept = logits >= mx.max(logits, axis=-1, keepdims=True) + log_min_p
    return mx.where(kept, logits, -mx.inf)


def apply_xtc(logits: mx.array, threshold: mx.array, spared: mx.array) -> mx.array:
    """Excludes top choices: of the tokens above ``threshold``, only the least likely stays.

    ``logits`` [batch, vocab]; ``threshold`` [batch, 1], inf: exclude nothing; ``spared``
    [vocab] marks tokens that always stay.
    """
    shares = mx.softmax(logits, axis=-1)
    least = mx.min(mx.where(shares > threshold, shares, mx.inf), axis=-1, keepdims=True)
    return mx.where((shares > least) & ~spared, -mx.inf, logits)


def apply_top_k(logits: mx.array, top_k: mx.array) -> mx.array:
    """Keeps the ``top_k`` [batch, 1] most likely tokens of [batch, vocab]."""
    order, values = best(logits, logits.shape[-1])
    values = mx.where(mx.arange(values.shape[-1]) < top_k, values, -mx.inf)
    return mx.put_along_axis(logits, order, values, axis=-1)
