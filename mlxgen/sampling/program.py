"""The draw of a group of rows as one function of arrays.

A program holds the order of the work inside a draw, and the part of it that a group needs.
Invariant: everything that is not an array is fixed when the program is made, so that it
can be compiled; a row is drawn in the same way in every program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import mlx.core as mx

from .aim import preferred
from .candidates import (
    CANDIDATES,
    Exclusion,
    Truncation,
    best,
    is_top_choice,
    kept_first,
    temper,
    truncate,
)
from .processors import apply_mask, pad_vocabulary
from .race import pick, pick_of, total
from .rows import Draw, Method, Want

Outputs: TypeAlias = dict[str, mx.array]
Program: TypeAlias = Callable[..., Outputs]

NOTHING = Want()


class Variant(NamedTuple):
    """All that the draw of a group of rows depends on, apart from arrays.

    ``masked``: some rows have a mask. ``changed``: the logits are no longer the model's.
    ``final``, ``own``: whether the final distribution and the model's own one are reported.
    What nobody evaluates of a report costs next to nothing, so there are no finer flags.
    """

    method: Method
    masked: bool
    changed: bool
    final: bool
    own: bool

    @classmethod
    def of(cls, method: Method, want: Want, complete: bool, masked: bool, changed: bool) -> Variant:
        method = method._replace(complete=method.truncates and (complete or method.complete))
        final = want.candidates > 0 or (want.prob and not method.draws)
        own = want.logprob or want.top > 0
        return cls(method, masked, changed and own, final, own)


def make_draw(variant: Variant, spared: mx.array | None) -> Program:
    """The draw of a group of rows.

    ``spared`` [padded vocab] marks the tokens that XTC never excludes, if there are any.
    The inputs are, as far as the variant needs them:

    - the logits [rows, vocab]; if these are ``changed``, the model's own too
    - the words [rows, words, 1]
    - unless the rows are greedy, the ``Truncation`` [rows, 1] and the keys [rows, 2]; if XTC may
      apply, its log threshold in this draw [rows, 1]; if they aim, the targets [rows, 1]

    The outputs are fields of ``Draw`` by name: ``token``; ``exact`` if rows are truncated;
    ``prob`` unless they are greedy; and those that the variant reports. There are ``CANDIDATES``
    candidates and top tokens, or as many as the vocabulary has.
    """

    def program(*inputs: mx.array) -> Outputs:
        feed = iter(inputs)
        logits = next(feed)
        raw = next(feed) if variant.changed else logits
        if variant.masked:
            logits = apply_mask(logits, next(feed))
        if variant.method.draws:
            draw = _random(pad_vocabulary(logits), variant, spared, feed)
        else:
            draw = _greedy(logits, variant)
        if variant.own:
            draw = _with_report(draw, raw)
        return {name: array for name, array in draw._asdict().items() if array is not None}

    return program


def only(outputs: Outputs, want: Want) -> Draw:
    """The outputs of a program that are wanted."""
    draw = Draw(outputs["token"], outputs.get("exact"), share=outputs.get("share"))
    if want == NOTHING:
        return draw
    found = {name: outputs[name] for name in ("prob", "logprob") if getattr(want, name)}
    if want.candidates:
        for name in ("candidates", "candidate_probs"):
            found[name] = outputs[name][:, : want.candidates]
    if want.top:
        for name in ("top_tokens", "top_logprobs"):
            found[name] = outputs[name][:, : want.top]
    return draw._replace(**found)


def _greedy(logits: mx.array, variant: Variant) -> Draw:
    token = mx.argmax(logits, axis=-1, keepdims=True)
    value = mx.take_along_axis(logits, token, axis=-1)
    draw = Draw(_checked(token, mx.isfinite(value)).reshape(-1))
    if variant.final:
        logits = pad_vocabulary(logits)
        log_mass = mx.logsumexp(logits, axis=-1, keepdims=True)
        ids, values = best(logits, CANDIDATES)
        draw = draw._replace(prob=mx.exp(value - log_mass).reshape(-1))
        draw = _with_candidates(draw, ids, mx.exp(values - log_mass))
    return draw


def _random(
    logits: mx.array, variant: Variant, spared: mx.array | None, feed: Iterator[mx.array]
) -> Draw:
    limits = Truncation(next(feed), next(feed), next(feed), next(feed))
    keys = next(feed)
    exclusion = Exclusion(next(feed), spared) if variant.method.excludes else None
    targets = next(feed) if variant.method.aims else None
    if not variant.method.truncates:
        return _plain(logits, limits, keys, exclusion, targets, variant)
    ids, values = best(logits, logits.shape[-1] if variant.method.complete else CANDIDATES)
    log_mass = mx.logsumexp(logits, axis=-1, keepdims=True)
    kept, exact = truncate(ids, values, limits, log_mass=log_mass, exclusion=exclusion)
    weights = temper(values, kept, limits, from_first=exclusion is None)
    shares = weights / total(weights)
    if targets is not None:
        weights = preferred(shares, targets)
    place, weight = pick_of(weights, ids, keys)
    mass = total(weights)
    sound = mx.isfinite(log_mass) & (weight > 0)
    if ids.shape[-1] == logits.shape[-1]:
        exact = mx.ones(sound.shape, mx.bool_)
    token = _checked(mx.take_along_axis(ids, place, axis=-1), sound)
    prob = (weight / mass).reshape(-1)
    draw = Draw(token.reshape(-1), (exact | ~sound).reshape(-1), prob)
    if targets is not None:
        draw = draw._replace(share=mx.take_along_axis(shares, place, axis=-1).reshape(-1))
    if variant.final:
        if exclusion is not None:
            order = kept_first(kept)
            ids = mx.take_along_axis(ids, order, axis=-1)
            weights = mx.take_along_axis(weights, order, axis=-1)
        if targets is not None:
            order = mx.argsort(-weights, axis=-1)
            ids = mx.take_along_axis(ids, order, axis=-1)
            weights = mx.take_along_axis(weights, order, axis=-1)
        draw = _with_candidates(draw, ids[:, :CANDIDATES], weights[:, :CANDIDATES] / mass)
    return draw


def _plain(
    logits: mx.array,
    limits: Truncation,
    keys: mx.array,
    exclusion: Exclusion | None,
    targets: mx.array | None,
    variant: Variant,
) -> Draw:
    below = logits - mx.max(logits, axis=-1, keepdims=True)
    kept = below >= limits.log_min_p  # none, if the highest is NaN or infinite
    if exclusion is not None:
        below = mx.where(kept, below, -mx.inf)
        log_shares = below - mx.logsumexp(below, axis=-1, keepdims=True)
        kept = kept & ~is_top_choice(log_shares, exclusion.log_threshold, exclusion.spared)
        below = mx.where(kept, below, -mx.inf)
        below = below - mx.max(below, axis=-1, keepdims=True)
    weights = mx.where(kept, mx.exp(below * limits.inverse_temperature), 0.0)
    shares = weights / total(weights)
    if targets is not None:
        weights = preferred(shares, targets)
    token, weight = pick(weights, keys)
    mass = total(weights)
    prob = (weight / mass).reshape(-1)
    draw = Draw(_checked(token, weight > 0).reshape(-1), prob=prob)
    if targets is not None:
        share = mx.take_along_axis(shares, mx.maximum(token, 0), axis=-1)
        draw = draw._replace(share=share.reshape(-1))
    if variant.final:
        ranked = logits if targets is None else weights
        ids, _ = best(mx.where(kept, ranked, -mx.inf), CANDIDATES)
        draw = _with_candidates(draw, ids, mx.take_along_axis(weights, ids, axis=-1) / mass)
    return draw


def _checked(token: mx.array, drawn: mx.array) -> mx.array:
    return mx.where(drawn, token.astype(mx.int32), -1)


def _with_candidates(draw: Draw, ids: mx.array, probs: mx.array) -> Draw:
    return draw._replace(
        candidates=_checked(ids, probs > 0), candidate_probs=mx.where(probs > 0, probs, 0.0)
    )


def _with_report(draw: Draw, raw: mx.array) -> Draw:
    """Adds the report on the model's own distribution."""
    most = min(CANDIDATES, raw.shape[-1])
    raw = pad_vocabulary(raw)
    log_mass = mx.logsumexp(raw, axis=-1, keepdims=True)
    token = mx.maximum(draw.token, 0)[:, None]
    logprob = mx.take_along_axis(raw, token, axis=-1) - log_mass
    ids, values = best(raw, most)
    return draw._replace(
        logprob=logprob.reshape(-1),
        top_tokens=ids.astype(mx.int32),
        top_logprobs=values - log_mass,
    )


def joined(draws: Sequence[Draw], order: mx.array) -> Draw:
    """The draws of the groups as one, with its rows in the order of the batch."""
    if any(draw.exact is not None for draw in draws):
        certain = [mx.ones(draw.token.shape, mx.bool_) for draw in draws]
        pairs = zip(draws, certain, strict=True)
        draws = [d if d.exact is not None else d._replace(exact=c) for d, c in pairs]
    if any(draw.share is not None for draw in draws):
        none = [mx.zeros(draw.token.shape) for draw in draws]
        draws = [
            d if d.share is not None else d._replace(share=n)
            for d, n in zip(draws, none, strict=True)
        ]
    fields = [
        [array for array in arrays if array is not None] for arrays in zip(*draws, strict=True)
    ]
    token, *reports = (mx.concatenate(arrays)[order] if arrays else None for arrays in fields)
    assert token is not None
    return Draw(token, *reports)
