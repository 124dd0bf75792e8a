"""Healed tokens and filters: what may be drawn, and what the filters see of it.

A token that spells the end of the prompt anew is translated into the part of it that is new.
Invariant: the filters see exactly the bytes after the prompt, tokenised on their own.
"""

from __future__ import annotations

import numpy as np

from ...errors import DeadEndError
from ...filters import Constraint, Int32Words, allows, words_of
from ...text import Healer
from ...tokens import Token, Vocabulary
from .ending import check_end
from .request import Request


def fed(request: Request, token: Token) -> list[Token] | None:
    """The tokens that the filters take instead of the next one; ``None``: the token itself.

    Raises ``FilterError`` for an end token if the filters do not let the text end.
    """
    if token in request.vocabulary.eos:
        check_end(request, token)
        return []
    if request.healer is not None and not request.healer.done:
        return _spell(request.vocabulary, request.healer.suffix(token))
    return None


def healing_mask(healer: Healer, request: Request) -> Int32Words:
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
