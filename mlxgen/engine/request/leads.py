"""What comes next: the run that must come, or the tokens that may, and how one of them is drawn.

These decide it, in this order; each counts only if those before it leave a choice:

- healing: the end of the prompt is spelled anew, in a way that the filters allow;
- the way to a valid end, once the budget leaves room for nothing else (``Closing``);
- the end of the thinking, once its budget is spent (``ThinkingLimit``);
- the filters;
- a controller (``Steering``), which may allow less than the filters.

Tokens that hooks and bans exclude, and end tokens that come too early, are not allowed either. Must
never append a token (``accept`` does), or change anything but ``Closing``, which searches for
another way if its own is excluded. Invariant: a mask that is returned allows at least one token.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from ...errors import DeadEndError
from ...filters import Int32Words, allows, without_tokens, words_of
from ...sampling import DrawRow
from ...text import Healer
from ...tokens import Token, Vocabulary
from .request import Request, spelled

NONE: frozenset[Token] = frozenset()


def lead(request: Request) -> Sequence[Token] | None:
    """The run that must come, as far as it is known; ``None`` if the filters and a controller
    decide what comes next."""
    closing, limit, constraint = request.closing, request.thinking, request.constraint
    if request.healer is not None and not request.healer.done:
        return ()
    if closing is not None and closing.forcing:
        return closing.way or ()
    if limit is None or not (run := limit.left(request.transcript, request.history)):
        return None
    return None if constraint is not None and constraint.validate(run) < len(run) else run


def forced_run(request: Request) -> Sequence[Token]:
    """The tokens that must come next, as far as they are known."""
    if request.closing is not None or request.thinking is not None or request.healer is not None:
        led = lead(request)
        if led is not None:
            return led
    return request.constraint.forced() if request.constraint is not None else ()


def has_choice(request: Request, token: Token) -> bool:
    """Whether another token could have been drawn instead of this one."""
    led = lead(request)
    if led is not None:
        return token not in led[:1]
    return request.constraint is None or request.constraint.only() is None


def is_foreseeable(request: Request) -> bool:
    """Whether the next draw is an ordinary one, so that a draft may guess it."""
    aims = request.lookback is not None and request.options.sampling.aims
    if request.steering is not None or aims or lead(request) is not None:
        return False
    decided = request.retries.at(request.position)
    return decided.temperature is None and not decided.banned and not decided.exclude


# ---- the tokens that may come next -------------------------------------------------------------


def next_mask(request: Request, without: Set[Token] = NONE) -> Int32Words | None:
    """The allowed next tokens as packed bits, ``without`` these; ``None`` if all are allowed.

    Raises ``DeadEndError`` if none is left.
    """
    excluded, constraint = without, request.constraint
    if request.retries.decided:
        excluded = excluded | request.retries.at(request.position).excluded
    if request.closing is not None or request.thinking is not None:
        step = _only_step(request, excluded)
        if step:
            return words_of(step, request.vocab_size)
    words = None
    if request.healer is not None and not request.healer.done:
        words = _healing_mask(request.healer, request)
    elif constraint is not None:
        words = constraint.mask()

    steering, options = request.steering, request.options
    steered = steering.words if steering is not None else None
    if request.position < options.min_tokens:  # an end would come too early
        ends = request.vocabulary.eos.union(s[0] for s in options.stop_tokens if len(s) == 1)
        excluded = excluded | ends
    if options.ignore_eos and constraint is not None:
        words = constraint.ordinary if words is None else words & constraint.ordinary
    elif steered is None and not excluded:
        return words
    if steered is not None:
        words = steered if words is None else words & steered
    if excluded:
        words = without_tokens(words, excluded, request.vocab_size)
    assert words is not None
    if not words.any():
        by = "excluded or banned"
        by += ", or refused by the filters" if constraint is not None else ""
        by += ", or not in the controller's mask" if steered is not None else ""
        raise DeadEndError(
            f"no token is left at position {request.position}: every one is {by}; allow more, or "
            "rewind further"
        )
    return words


def leaves_any(request: Request, without: Set[Token] = NONE) -> bool:
    """Whether any token could come next ``without`` these."""
    try:
        next_mask(request, without)
    except DeadEndError:
        return False
    return True


def _only_step(request: Request, excluded: Set[Token]) -> Sequence[Token]:
    """The only tokens that the way to a valid end, or out of the thinking, allows; () if any."""
    closing, led = request.closing, lead(request)
    if closing is not None and closing.forcing and not request.is_healing:
        step = led[:1] if led else sorted(request.vocabulary.eos - excluded)
        if not step or not excluded.isdisjoint(step):
            step = closing.avoid(excluded)
        if step:
            return step
        led = lead(request)
    return led[:1] if led is not None and excluded.isdisjoint(led[:1]) else ()


def _healing_mask(healer: Healer, request: Request) -> Int32Words:
    """The tokens that spell the rest of the prompt's end and go on as the filters allow.

    Raises ``DeadEndError`` if the filters allow none of them.
    """
    constraint, vocabulary, vocab_size = request.constraint, request.vocabulary, request.vocab_size
    candidates = healer.candidates()
    candidates = candidates[candidates < vocab_size]
    allowed = constraint.mask() if constraint is not None else None
    if constraint is not None and allowed is not None:
        keep = []
        for token in candidates.tolist():
            run = spelled(vocabulary, healer.suffix(token))
            one = len(run) == 1
            keep.append(allows(allowed, run[0]) if one else constraint.validate(run) == len(run))
        candidates = candidates[np.array(keep, dtype=bool)]
    if not len(candidates):
        raise DeadEndError(
            f"the filters allow no token that begins with the prompt's end {healer.remaining!r}; "
            "use heal=False"
        )
    return words_of(candidates, vocab_size)


# ---- draws -------------------------------------------------------------------------------------


def next_draw(request: Request) -> DrawRow:
    """The next draw. Raises ``DeadEndError`` if no token is left for it."""
    steering, retries, position = request.steering, request.retries, request.position
    if request.constraint is not None and len(request.constraint) > position:
        request.rewind(len(request.history))  # a filter failed to go back after a draft
    warmth = None if steering is None else steering.temperature
    if warmth is None and retries.tries:
        warmth = retries.warmth(position, request.options.sampling.temperature)
    lookback = request.lookback
    return DrawRow(
        request.options.sampling,
        request.seed,
        position,
        retries.attempts.get(position, 0),
        next_mask(request),
        () if lookback is None else lookback.changes(),
        warmth,
        None if lookback is None else lookback.target,
    )


def free_draws(request: Request, count: int, after: int = 0) -> list[DrawRow]:
    """The draws of ``count`` positions, after the next ``after`` ones, which are not drawn yet;
    none if one of them depends on more than its position."""
    first, retries, thinking = request.position + after, request.retries, request.thinking
    if request.constraint is not None or request.steering is not None:
        return []
    if request.lookback is not None:
        return []
    if request.healer is not None and not request.healer.done:
        return []
    if first < request.options.min_tokens:
        return []
    if thinking is not None and not thinking.allows(request.transcript, after + count):
        return []
    sampling, seed, draws = request.options.sampling, request.seed, list[DrawRow]()
    for place in range(first, first + count):
        if retries.decided and retries.at(place).excluded:
            return []
        draws.append(DrawRow(sampling, seed, place, retries.attempts.get(place, 0)))
    return draws


def xtc_special(vocabulary: Vocabulary) -> list[Token]:
    """The tokens that XTC spares, as mlx-lm does: the end tokens and the newline."""
    newline = vocabulary.token_of(b"\n")
    return sorted(vocabulary.eos.union(() if newline is None else (newline,)))
