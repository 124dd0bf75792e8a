"""What comes next: which run must, which tokens may, and how one of them is drawn.

A text is led by these, in this order; each counts only if those before it leave a choice:

- healing: the end of the prompt is spelled anew, in a way that the filters allow;
- the way to a valid end, once the budget leaves room for nothing else (``Closing``);
- the end of the thinking, once its budget is spent (``ThinkingLimit``);
- the filters;
- a controller (``Steering``), which may allow less than the filters.

What hooks and bans exclude, and end tokens that come too early, are left out of what they allow.
Must never append a token (``accept`` does), or change anything but ``Closing``, which searches for
another way if its own is excluded. Invariant: a mask that is returned allows at least one token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence, Set

import numpy as np

from ...errors import DeadEndError
from ...filters import Constraint, Int32Words, allows, without_tokens, words_of
from ...sampling import DrawRow
from ...text import Healer
from ...tokens import Token, Vocabulary
from .ending import check_end, too_early
from .request import Request

# ---- the run that must come next ---------------------------------------------------------------


def forced_run(request: Request) -> Sequence[Token]:
    """The tokens that must come next, as far as they are known."""
    closing, constraint = request.closing, request.constraint
    if request.is_healing:
        return ()
    if closing is not None and closing.forcing:
        return closing.way or ()
    if request.thinking is not None and (run := out_of_thinking(request)):
        return run
    return constraint.forced() if constraint is not None else ()


def out_of_thinking(request: Request) -> Sequence[Token]:
    """The tokens that end the thinking because its budget is spent, as far as the filters allow
    them; usually none."""
    limit, closing, constraint = request.thinking, request.closing, request.constraint
    if limit is None or request.is_healing or (closing is not None and closing.forcing):
        return ()
    run = limit.left(request.transcript)
    return () if constraint is not None and constraint.validate(run) < len(run) else run


def is_led(request: Request) -> bool:
    """Whether healing, the way to a valid end or that out of the thinking decides alone."""
    if request.is_healing or (request.closing is not None and request.closing.forcing):
        return True
    return request.thinking is not None and bool(out_of_thinking(request))


def is_foreseeable(request: Request) -> bool:
    """Whether the next token is drawn as those after it will be, so that a draft may foresee it."""
    if request.steering is not None or request.aim is not None or is_led(request):
        return False
    return not (request.retries.differs or request.retries.excluded(request.position))


def has_choice(request: Request, token: Token) -> bool:
    """Whether another token could have been drawn instead of this one."""
    if request.thinking is not None and out_of_thinking(request)[:1] == (token,):
        return False
    constraint = request.constraint
    return constraint is None or is_led(request) or constraint.only() is None


# ---- the tokens that may come next -------------------------------------------------------------


def next_mask(request: Request) -> Int32Words | None:
    """The allowed next tokens as packed bits; ``None`` if all are.

    Raises ``DeadEndError`` if none is left.
    """
    excluded = request.retries.excluded(request.position)
    if request.healer is None:
        words = request.constraint.mask() if request.constraint is not None else None
    else:
        words = _allowed(request)
    if request.closing is not None or request.thinking is not None:
        step = _only_step(request, excluded)
        if step:
            return words_of(step, request.vocab_size)
    return _left(request, words, excluded)


def leaves_any(request: Request, exclude: Set[Token]) -> bool:
    """Whether any token could come next if a hook excluded these."""
    excluded = request.retries.excluded(request.position).union(exclude)
    try:
        words = _allowed(request)
        step = out_of_thinking(request)[:1]
        if not step or not excluded.isdisjoint(step):
            _left(request, words, excluded)  # any token may replace the way to the end
    except DeadEndError:
        return False
    return True


def _allowed(request: Request) -> Int32Words | None:
    """What healing or the filters allow."""
    if request.healer is not None and not request.healer.done:
        return _healing_mask(request.healer, request)
    return request.constraint.mask() if request.constraint is not None else None


def _only_step(request: Request, excluded: frozenset[Token]) -> Sequence[Token]:
    """The tokens that the way to a valid end, or that out of the thinking, allows alone."""
    closing = request.closing
    if closing is not None and closing.forcing:
        step = closing.way[:1] if closing.way else sorted(request.vocabulary.eos - excluded)
        if not step or not excluded.isdisjoint(step):
            step = closing.avoid(excluded)
        if step:
            return step
    step = out_of_thinking(request)[:1] if request.thinking is not None else ()
    return step if excluded.isdisjoint(step) else ()


def _left(
    request: Request, words: Int32Words | None, excluded: frozenset[Token]
) -> Int32Words | None:
    """What is left of ``words`` for a controller and without what is excluded or too early."""
    constraint, steering = request.constraint, request.steering
    steered = steering.words if steering is not None else None
    if request.position < request.options.min_tokens:
        excluded = excluded.union(too_early(request))
    if request.options.ignore_eos and constraint is not None:
        words = constraint.ordinary if words is None else words & constraint.ordinary
    elif steered is None and not excluded:
        return words
    if steered is not None:
        words = steered if words is None else words & steered
    if excluded:
        words = without_tokens(words, excluded, request.vocab_size)
    assert words is not None
    if not words.any():
        by = "excluded or banned" + (
            ", or refused by the filters" if constraint is not None else ""
        )
        by += ", or not in the controller's mask" if steered is not None else ""
        raise DeadEndError(
            f"no token is left at position {request.position}: every one is {by}; allow more, or "
            "rewind further"
        )
    return words


# ---- healing -----------------------------------------------------------------------------------


def fed(request: Request, token: Token) -> list[Token] | None:
    """The tokens that the filters take instead of the next one; ``None``: the token itself.

    They see exactly the bytes after the prompt. A token that spells the end of the prompt anew is
    translated into the part of it that is new, tokenised on its own. Raises ``FilterError`` for an
    end token if the filters do not let the text end.
    """
    if token in request.vocabulary.eos:
        check_end(request, token)
        return []
    if request.healer is not None and not request.healer.done:
        return _spell(request.vocabulary, request.healer.suffix(token))
    return None


def _healing_mask(healer: Healer, request: Request) -> Int32Words:
    """The tokens that spell the rest of the prompt's end, and that the filters allow after it.

    Raises ``DeadEndError`` if the filters allow none of them.
    """
    constraint, vocabulary, vocab_size = request.constraint, request.vocabulary, request.vocab_size
    candidates = healer.candidates()
    candidates = candidates[candidates < vocab_size]
    if constraint is not None:
        allowed = constraint.mask()
        if allowed is not None:
            keep = [_allows(constraint, allowed, vocabulary, healer, int(t)) for t in candidates]
            candidates = candidates[np.array(keep, dtype=bool)]
    if not len(candidates):
        raise DeadEndError(
            f"the filters allow no token that begins with the prompt's end {healer.remaining!r}; "
            "use heal=False"
        )
    return words_of(candidates, vocab_size)


def _spell(vocabulary: Vocabulary, data: bytes) -> list[Token]:
    if not data:
        return []
    single = vocabulary.token_of(data)
    return [single] if single is not None else vocabulary.continue_with(data)


def _allows(
    constraint: Constraint,
    allowed: Int32Words,
    vocabulary: Vocabulary,
    healer: Healer,
    token: Token,
) -> bool:
    suffix = healer.suffix(token)
    if not suffix:
        return True
    run = _spell(vocabulary, suffix)
    if len(run) == 1:
        return allows(allowed, run[0])
    return constraint.validate(run) == len(run)


# ---- draws -------------------------------------------------------------------------------------


def next_draw(request: Request) -> DrawRow:
    """The next draw. Raises ``DeadEndError`` if no token is left for it."""
    steering, retries, position = request.steering, request.retries, request.position
    if request.constraint is not None and len(request.constraint) > position:
        request.rewind(len(request.history))  # a filter failed to, after tokens that were drafted
    warmth = retries.warmth(position, request.options.sampling.temperature)
    return DrawRow(
        request.options.sampling,
        request.seed,
        position,
        retries.attempts.get(position, 0),
        next_mask(request),
        request.counts,
        warmth if steering is None else steering.temperature,
        None if request.repetitions is None else request.repetitions.penalties(),
        None if request.aim is None else request.aim.next,
    )


def free_draws(request: Request, count: int, after: int = 0) -> list[DrawRow]:
    """The draws of ``count`` positions, ``after`` so many others that are not drawn yet; none if
    one of them depends on more than its position."""
    if request.constraint is not None or request.steering is not None or request.looks_back:
        return []
    first, retries = request.position + after, request.retries
    if request.is_healing or first < request.options.min_tokens:
        return []
    thinking = request.thinking
    if thinking is not None and not thinking.allows(request.transcript, after + count):
        return []
    positions = range(first, first + count)
    if retries.exclude or (retries.banned and any(map(retries.excluded, positions))):
        return []
    sampling, seed, attempts = request.options.sampling, request.seed, retries.attempts
    return [DrawRow(sampling, seed, place, attempts.get(place, 0)) for place in positions]


def warm(request: Request) -> None:
    """Compute the filters' next mask now, while the model runs; the draw will need it."""
    if request.constraint is not None:
        with contextlib.suppress(Exception):  # the draw that needs it raises it again
            request.constraint.mask()
