"""The draw of a group of rows as one function of arrays: greedy, or by weight.

A program holds the order of the work inside a draw, and the part of it that a group needs.
Invariant: everything that is not an array is fixed when the program is made, so that it
can be compiled; a row is drawn in the same way in every program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import mlx.core as mx

from .aim import preferred
from .candidates import CANDIDATES, Exclusion, Truncation, best, truncate
from .processors import apply_mask, pad_vocabulary
from .race import pick, ramp
from .rows import Draw, Method, Want

Outputs: TypeAlias = dict[str, mx.array]
Program: TypeAlias = Callable[..., Outputs]

NOTHING = Want()


class Variant(NamedTuple):
    """All that the draw of a group of rows depends on, apart from arrays.

    ``excludes``, ``aims``: XTC may apply to some rows, or tokens near a probability are preferred.
    ``masked``: some rows have a mask. ``changed``: the logits are no longer the model's.
    ``final``, ``own``: whether the final distribution and the model's own one are reported;
    ``whole``: whether the final one is, for all tokens.
    What nobody evaluates of a report costs next to nothing, so there are no finer flags.
    """

    method: Method
    excludes: bool
    aims: bool
    masked: bool
    changed: bool
    final: bool
    own: bool
    whole: bool


def make_draw(variant: Variant, spared: mx.array | None) -> Program:
    """The draw of a group of rows.

    ``spared`` [padded vocab] marks the tokens that XTC never excludes, if there are any.
    The inputs are, as far as the variant needs them:

    - the logits [rows, vocab]; if these are ``changed``, the model's own too
    - the words [rows, words, 1]
    - unless the rows are greedy, the ``Truncation`` [rows, 1] and the keys [rows, 2]; if XTC may
      apply, its log threshold in this draw [rows, 1]; if some aim, the targets [rows, 1]

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
        if variant.method is Method.GREEDY:
            found = _greedy(logits, variant)
        else:
            found = _weighed(pad_vocabulary(logits), variant, spared, feed)
        if variant.whole:
            found["distribution"] = found["distribution"][:, : logits.shape[-1]]
        return found | _report(found["token"], raw) if variant.own else found

    return program


def only(outputs: Outputs, want: Want) -> Draw:
    """The outputs of a program that are wanted."""
    draw = Draw(outputs["token"], outputs.get("exact"), share=outputs.get("share"))
    if want == NOTHING:
        return draw
    found = {
        name: outputs[name] for name in ("prob", "logprob", "distribution") if getattr(want, name)
    }
    for count, names in (
        (want.candidates, ("candidates", "candidate_probs")),
        (want.top, ("top_tokens", "top_logprobs")),
    ):
        found |= {name: outputs[name][:, :count] for name in names if count}
    return draw._replace(**found)


def _greedy(logits: mx.array, variant: Variant) -> Outputs:
    token = mx.argmax(logits, axis=-1, keepdims=True)
    value = mx.take_along_axis(logits, token, axis=-1)
    found = {"token": _checked(token, mx.isfinite(value)).reshape(-1)}
    if variant.final or variant.whole:
        shares = mx.softmax(pad_vocabulary(logits), axis=-1)
        found |= {"prob": mx.take_along_axis(shares, token, axis=-1).reshape(-1)}
        found |= _candidates(ramp(shares.shape[-1]), shares) | {"distribution": shares}
    return found


def _weighed(
    logits: mx.array, variant: Variant, spared: mx.array | None, feed: Iterator[mx.array]
) -> Outputs:
    limits, keys = Truncation(*(next(feed) for _ in Truncation._fields)), next(feed)
    threshold = next(feed) if variant.excludes else None
    vocab = logits.shape[-1]
    ids, values, log_mass = ramp(vocab)[None], logits, None
    if variant.method is not Method.PLAIN:
        ids, values = best(logits, vocab if variant.method is Method.COMPLETE else CANDIDATES)
        log_mass = mx.logsumexp(logits, axis=-1, keepdims=True)
    exclusion = None
    if threshold is not None:
        exclusion = Exclusion(threshold, None if spared is None else spared[ids])
    kept, exact = truncate(values, limits, log_mass=log_mass, exclusion=exclusion)
    values = mx.where(kept, values, -mx.inf)
    below = values - mx.max(values, axis=-1, keepdims=True)  # NaN, if nothing can be drawn
    shares = weights = mx.softmax(below * limits.inverse_temperature, axis=-1)
    if variant.aims:
        targets = next(feed)
        weights = mx.where(targets >= 0, preferred(shares, targets), shares)

    place = pick(weights, ids, keys)
    weight = mx.take_along_axis(weights, place, axis=-1)
    sound = weight > 0
    if log_mass is not None:
        sound = sound & mx.isfinite(log_mass)
    token = place if log_mass is None else mx.take_along_axis(ids, place, axis=-1)
    found = {"token": _checked(token, sound).reshape(-1), "prob": weight.reshape(-1)}
    if log_mass is not None:
        whole = mx.array(ids.shape[-1] == vocab)
        found["exact"] = (exact | whole | ~sound).reshape(-1)
    if variant.whole:
        zeros = mx.zeros(logits.shape, mx.float32)
        scattered = log_mass is not None
        found["distribution"] = (
            mx.put_along_axis(zeros, ids, weights, axis=-1) if scattered else weights
        )
    if variant.aims:
        found["share"] = mx.take_along_axis(shares, place, axis=-1).reshape(-1)
    return found | _candidates(ids, weights) if variant.final else found


def _checked(token: mx.array, drawn: mx.array) -> mx.array:
    return mx.where(drawn, token.astype(mx.int32), -1)


def _candidates(ids: mx.array, weights: mx.array) -> Outputs:
    """The likeliest of the tokens ``ids`` [batch or 1, n], by their probabilities [batch, n]."""
    order, probs = best(weights, CANDIDATES)
    ids = mx.take_along_axis(mx.broadcast_to(ids, weights.shape), order, axis=-1)
    return {
        "candidates": _checked(ids, probs > 0),
        "candidate_probs": mx.where(probs > 0, probs, 0.0),
    }


def _report(token: mx.array, raw: mx.array) -> Outputs:
    """The report on the model's own distribution."""
    raw = raw.astype(mx.float32)
    log_mass = mx.logsumexp(raw, axis=-1, keepdims=True)
    logprob = mx.take_along_axis(raw, mx.maximum(token, 0)[:, None], axis=-1) - log_mass
    ids, values = best(raw, CANDIDATES)
    return {
        "logprob": logprob.reshape(-1),
        "top_tokens": ids.astype(mx.int32),
        "top_logprobs": values - log_mass,
    }


def joined(draws: Sequence[Draw], order: mx.array) -> Draw:
    """The draws of the groups as one, with its rows in the order of the batch."""
    found = {}
    for name in Draw._fields:
        arrays = [getattr(draw, name) for draw in draws]
        if all(array is None for array in arrays):
            continue
        for place, array in enumerate(arrays):
            if array is None:  # all rows are exact, and none aims
                kind = mx.bool_ if name == "exact" else mx.float32
                arrays[place] = mx.ones(draws[place].token.shape, kind)
        found[name] = mx.concatenate(arrays)[order]
    return Draw(**found)
