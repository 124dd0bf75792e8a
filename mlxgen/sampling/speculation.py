"""Speculative sampling: whether a drafted token stands, and what comes in its place.

Owns the test of Leviathan et al. 2023 and Chen et al. 2023 for several positions at once. Must
never know where drafts come from. Invariant: the token that comes out of a position is
distributed as if it had been drawn from the model's own final distribution.

A drafted token d, drawn from the draft's distribution q, stands with probability
min(1, p(d) / q(d)), p being the model's. Otherwise the token is drawn from what p has more
than q, normalised. Where a draft does not draw but names one token (greedy, or found in the
text), q is all on it: then drawing from p as always and comparing is the same thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import mlx.core as mx

from .distribution import final_distribution
from .draws import FREE, INNER, OUTER, uniform
from .processors import padded_size
from .rows import DrawRow
from .stack import column
from .weights import is_long, pick

if TYPE_CHECKING:
    from ..tokens import Token

ACCEPT, RESIDUAL_INNER, RESIDUAL_OUTER = FREE, FREE + 1, FREE + 2  # lanes of the uniforms


class Verified(NamedTuple):
    """Lazy arrays [positions]: whether drafted tokens stand, and the tokens in their place."""

    stands: mx.array
    instead: mx.array


def draw_from(probs: mx.array, rows: Sequence[DrawRow]) -> mx.array:
    """One token [rows] for each row of ``probs`` [rows, vocab], by the lanes of a plain draw."""
    return _picked(probs, rows, INNER, OUTER)


def verify(
    logits: mx.array,
    rows: Sequence[DrawRow],
    drafted: mx.array,
    draft_probs: mx.array,
    *,
    xtc_special: Iterable[Token] = (),
) -> Verified:
    """Test ``drafted`` [n] against ``logits`` [n, vocab] of the model at these positions.

    ``draft_probs`` [n, vocab] are the distributions that the drafted tokens were drawn from.
    """
    probs = final_distribution(logits, rows, xtc_special=xtc_special)
    at = drafted[:, None]
    mine = mx.take_along_axis(probs, at, axis=-1)
    theirs = mx.take_along_axis(draft_probs, at, axis=-1)
    numbers = column(uniform(r.seed, r.position, r.attempt, ACCEPT) for r in rows)
    stands = numbers * theirs < mine
    rest = mx.maximum(probs - draft_probs, 0)
    some = mx.any(rest > 0, axis=-1, keepdims=True)  # none: p is q, and then every draft stands
    instead = _picked(mx.where(some, rest, probs), rows, RESIDUAL_INNER, RESIDUAL_OUTER)
    return Verified(stands.reshape(-1), instead)


def _picked(probs: mx.array, rows: Sequence[DrawRow], inner: int, outer: int) -> mx.array:
    size = padded_size(probs.shape[-1])
    weights = mx.pad(probs, [(0, 0), (0, size - probs.shape[-1])])
    first = column(uniform(r.seed, r.position, r.attempt, inner) for r in rows)
    second = None
    if is_long(size):
        second = column(uniform(r.seed, r.position, r.attempt, outer) for r in rows)
    token, weight, _ = pick(weights, first, second)
    return mx.where(weight > 0, token.astype(mx.int32), -1).reshape(-1)
