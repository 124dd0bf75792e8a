"""How the next token of a request is to be drawn.

Owns the order in which healing, filters, exclusions, the forced ways to an end and out of the
thinking, ``min_tokens`` and a controller's mask are combined. Must never change any of them except
``Closing``, which searches for another way if its own is excluded. Invariant: a mask that is
returned allows at least one token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Set

from ...errors import DeadEndError
from ...filters import Int32Words, without_tokens, words_of
from ...sampling import DrawRow
from ...tokens import Token
from .closing import Closing
from .ending import too_early
from .healing import healing_mask
from .request import Request


def next_draw(request: Request) -> DrawRow:
    """The next draw. Raises ``DeadEndError`` if no token is left for it."""
    steering, retries, position = request.steering, request.retries, request.position
    if request.constraint is not None and len(request.constraint) > position:
        request.rewind(len(request.history))  # a filter failed to, after tokens that were drafted
    return DrawRow(
        request.options.sampling,
        request.seed,
        position,
        retries.attempts.get(position, 0),
        _mask(request, request.closing, retries.excluded(position)),
        request.counts,
        retries.temperature if steering is None else steering.temperature,
        None if request.repetitions is None else request.repetitions.penalties(),
    )


def plain_draw(request: Request, position: int) -> DrawRow:
    """The draw of a later position, if it depends on the position alone."""
    attempt = request.retries.attempts.get(position, 0)
    return DrawRow(request.options.sampling, request.seed, position, attempt)


def blind_draw(request: Request) -> DrawRow | None:
    """The draw after the next one, if it does not depend on the next token."""
    position = request.position + 1
    steered = request.constraint is not None or request.looks_back
    steered = steered or request.steering is not None or request.is_healing
    if request.thinking is not None and not request.thinking.allows(request.transcript, 2):
        return None
    if steered or request.may_decline or position < request.options.min_tokens:
        return None
    return plain_draw(request, position)


def next_mask(request: Request) -> Int32Words | None:
    """The allowed next tokens as packed bits; ``None`` if all are.

    Raises ``DeadEndError`` if none is left.
    """
    return _mask(request, request.closing, request.retries.excluded(request.position))


def leaves_any(request: Request, exclude: Set[Token]) -> bool:
    """Whether any token could come next if a hook excluded these."""
    excluded = request.retries.excluded(request.position).union(exclude)
    try:
        _mask(request, None, excluded)  # any token may replace the way to the end
    except DeadEndError:
        return False
    return True


def warm(request: Request) -> None:
    """Compute the filters' next mask now, while the model runs; the draw will need it."""
    if request.constraint is not None:
        with contextlib.suppress(Exception):  # the draw that needs it raises it again
            request.constraint.mask()


def _mask(
    request: Request, closing: Closing | None, excluded: frozenset[Token]
) -> Int32Words | None:
    constraint, healer, vocab_size = request.constraint, request.healer, request.vocab_size
    words: Int32Words | None
    if healer is not None and not healer.done:
        words = healing_mask(healer, request)
    else:
        words = constraint.mask() if constraint is not None else None
    if closing is not None and closing.forcing:
        step = closing.way[:1] if closing.way else sorted(request.vocabulary.eos - excluded)
        if not step or not excluded.isdisjoint(step):
            step = closing.avoid(excluded)
        if step:
            return words_of(step, vocab_size)
    if request.thinking is not None:
        step = request.out_of_thinking[:1]
        if step and excluded.isdisjoint(step):
            return words_of(step, vocab_size)
    if early := too_early(request):
        excluded = excluded.union(early)
    steered = request.steering.words if request.steering is not None else None
    if request.options.ignore_eos and constraint is not None:
        words = constraint.ordinary if words is None else words & constraint.ordinary
    elif steered is None and not excluded:
        return words
    if steered is not None:
        words = steered if words is None else words & steered
    if excluded:
        words = without_tokens(words, excluded, vocab_size)
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
