"""A draw for a whole batch as one function of arrays.

Owns the order of the work inside a draw, and which of it a batch needs. Must never know
settings, seeds or how its inputs were gathered. Invariant: all that is not an array is
fixed when the program is made, so that it can be compiled; a row is drawn in the same
way in every program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import mlx.core as mx

from .candidates import (
    CANDIDATES,
    Exclusion,
    Limits,
    best,
    is_top_choice,
    kept_first,
    temper,
    truncate,
)
from .plan import Form, Kind, Part
from .processors import apply_bias, apply_mask, apply_penalties, pad_vocabulary, padded_size
from .rows import Draw, Want
from .weights import exponential, highest, is_long, log_total, pick, pick_sorted

Program = Callable[..., Sequence[mx.array]]


class Request(NamedTuple):
    """All that a program depends on apart from arrays.

    ``masked``: some rows have a mask. ``complete``: truncated rows look at the whole
    vocabulary instead of the likeliest candidates.
    """

    form: Form
    masked: bool
    complete: bool
    want: Want


def make_program(request: Request, spared: mx.array | None) -> Program:
    """Compile the program of a request.

    ``spared`` [padded vocab] marks the tokens that XTC never excludes, if there are any.
    The inputs are, as far as the request has them:

    - logits [batch, vocab]
    - biased ids and biases [batch, n]
    - counted ids and counts [batch, n], the three penalties [batch, 1]
    - words [batch, words, 1]
    - of each group: its places [rows], if it is not alone; for rows that are not greedy
      the ``Limits`` and the uniform ``INNER``; ``OUTER`` if ``needs_outer``; XTC's log
      threshold in this draw, if it may apply; all [rows, 1]
    - the order [batch], if there are several groups

    The outputs are the fields of ``Draw`` that ``outputs`` names.
    """
    parts, want = request.form.parts, request.want
    alone = len(parts) == 1

    def program(*inputs: mx.array) -> list[mx.array]:
        feed = iter(inputs)
        raw = next(feed)
        logits = process(raw, request, feed)
        draws = []
        for part in parts:
            rows = logits if alone else logits[next(feed)]
            if part.kind == Kind.GREEDY:
                draws.append(_greedy(rows, want))
            else:
                draws.append(_random(pad_vocabulary(rows), part, request, spared, feed))
        draw = draws[0] if alone else _joined(draws, next(feed))
        draw = _reported(draw, raw, want)
        return [array for array in draw if array is not None]

    return mx.compile(program)


def needs_outer(request: Request, part: Part, vocab_size: int) -> bool:
    """Whether rows of a group choose among several blocks of tokens."""
    if not part.kind.truncates:
        return is_long(padded_size(vocab_size))
    return _is_complete(request, part)


def _is_complete(request: Request, part: Part) -> bool:
    return request.complete or part.kind == Kind.WIDE


def outputs(request: Request) -> tuple[str, ...]:
    """The fields of ``Draw`` that the program of a request gives, in their order."""
    want = request.want
    given = {
        "token": True,
        "exact": any(part.kind.truncates for part in request.form.parts),
        "prob": want.prob,
        "candidates": want.candidates > 0,
        "candidate_probs": want.candidates > 0,
        "logprob": want.logprob,
        "top_tokens": want.top > 0,
        "top_logprobs": want.top > 0,
    }
    return tuple(field for field in Draw._fields if given[field])


def process(raw: mx.array, request: Request, feed: Iterator[mx.array]) -> mx.array:
    """What there is to draw from: biases, then penalties as mlx-lm does, then the mask."""
    logits, form = raw, request.form
    if form.biased or form.penalised:
        logits = logits.astype(mx.float32)
    if form.biased:
        logits = apply_bias(logits, next(feed), next(feed))
    if form.penalised:
        logits = apply_penalties(logits, *(next(feed) for _ in range(5)))
    if request.masked:
        logits = apply_mask(logits, next(feed))
    return logits


def _greedy(logits: mx.array, want: Want) -> Draw:
    token = mx.argmax(logits, axis=-1, keepdims=True)
    value = mx.take_along_axis(logits, token, axis=-1)
    draw = Draw(_checked(token, mx.isfinite(value)).reshape(-1))
    if not want.prob and not want.candidates:
        return draw
    logits = pad_vocabulary(logits)
    log_mass = log_total(logits)
    if want.prob:
        draw = draw._replace(prob=mx.exp(value - log_mass).reshape(-1))
    if want.candidates:
        ids, values = best(logits, CANDIDATES)
        draw = _with_candidates(draw, ids, mx.exp(values - log_mass), want)
    return draw


def _random(
    logits: mx.array,
    part: Part,
    request: Request,
    spared: mx.array | None,
    feed: Iterator[mx.array],
) -> Draw:
    limits = Limits(next(feed), next(feed), next(feed), next(feed))
    inner = next(feed)
    outer = next(feed) if needs_outer(request, part, logits.shape[-1]) else None
    exclusion = Exclusion(next(feed), spared) if part.excludes else None
    if not part.kind.truncates:
        return _plain(logits, limits, inner, outer, exclusion, request.want)
    ids, values = best(logits, logits.shape[-1] if _is_complete(request, part) else CANDIDATES)
    log_mass = log_total(logits) if part.kind != Kind.RANKED else None
    kept, exact = truncate(
        ids, values, limits, log_mass=log_mass, exclusion=exclusion, ranked=part.ranked
    )
    weights = temper(values, kept, limits, from_first=exclusion is None)
    place, weight, mass = pick_sorted(weights, inner, outer)
    sound = mx.isfinite(highest(logits) if log_mass is None else log_mass) & (weight > 0)
    if ids.shape[-1] == logits.shape[-1]:
        exact = mx.ones(sound.shape, mx.bool_)
    token = _checked(mx.take_along_axis(ids, place, axis=-1), sound)
    draw = Draw(token.reshape(-1), (exact | ~sound).reshape(-1))
    if request.want.prob:
        draw = draw._replace(prob=(weight / mass).reshape(-1))
    if request.want.candidates:
        if exclusion is not None:
            order = kept_first(kept)
            ids = mx.take_along_axis(ids, order, axis=-1)
            weights = mx.take_along_axis(weights, order, axis=-1)
        draw = _with_candidates(draw, ids, weights / mass, request.want)
    return draw


def _plain(
    logits: mx.array,
    limits: Limits,
    inner: mx.array,
    outer: mx.array | None,
    exclusion: Exclusion | None,
    want: Want,
) -> Draw:
    below = logits - highest(logits)
    kept = below >= limits.log_min_p  # nothing is, where the highest is NaN or infinite
    if exclusion is not None:
        below = mx.where(kept, below, -mx.inf)
        log_shares = below - log_total(below)
        kept = kept & ~is_top_choice(log_shares, exclusion.log_threshold, exclusion.spared)
        below = mx.where(kept, below, -mx.inf)
        below = below - highest(below)
    weights = mx.where(kept, exponential(below * limits.inverse_temperature), 0.0)
    token, weight, mass = pick(weights, inner, outer)
    draw = Draw(_checked(token, weight > 0).reshape(-1))
    if want.prob:
        draw = draw._replace(prob=(weight / mass).reshape(-1))
    if want.candidates:
        ids, _ = best(mx.where(kept, logits, -mx.inf), CANDIDATES)
        probs = mx.take_along_axis(weights, ids, axis=-1) / mass
        draw = _with_candidates(draw, ids, probs, want)
    return draw


def _checked(token: mx.array, drawn: mx.array) -> mx.array:
    return mx.where(drawn, token.astype(mx.int32), -1)


def _with_candidates(draw: Draw, ids: mx.array, probs: mx.array, want: Want) -> Draw:
    ids, probs = ids[:, : want.candidates], probs[:, : want.candidates]
    return draw._replace(
        candidates=_checked(ids, probs > 0), candidate_probs=mx.where(probs > 0, probs, 0.0)
    )


def _joined(draws: list[Draw], order: mx.array) -> Draw:
    """The groups' draws as one, its rows in the order of the batch."""
    if any(draw.exact is not None for draw in draws):
        certain = [mx.ones(draw.token.shape, mx.bool_) for draw in draws]
        pairs = zip(draws, certain, strict=True)
        draws = [d if d.exact is not None else d._replace(exact=c) for d, c in pairs]
    fields = [
        [array for array in arrays if array is not None] for arrays in zip(*draws, strict=True)
    ]
    token, *reports = (mx.concatenate(arrays)[order] if arrays else None for arrays in fields)
    assert token is not None
    return Draw(token, *reports)


def _reported(draw: Draw, raw: mx.array, want: Want) -> Draw:
    """Add what was asked about the model's own distribution."""
    if not want.logprob and not want.top:
        return draw
    top = min(want.top, raw.shape[-1])
    raw = pad_vocabulary(raw)
    log_mass = log_total(raw)
    if want.logprob:
        token = mx.maximum(draw.token, 0)[:, None]
        logprob = mx.take_along_axis(raw, token, axis=-1) - log_mass
        draw = draw._replace(logprob=logprob.reshape(-1))
    if want.top:
        ids, values = best(raw, CANDIDATES)
        draw = draw._replace(
            top_tokens=ids[:, :top].astype(mx.int32),
            top_logprobs=(values - log_mass)[:, :top],
        )
    return draw
