"""Healed tokens and filters: what may be drawn, and what the filters see of it.

Owns the translation between a token that re-does the end of the prompt and the part of
it that is new. Must never know how prompts are cut (``text.healing`` does). Invariant:
the filters see exactly the bytes behind the prompt, tokenised as such.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...errors import DeadEndError, FilterError
from ...filters import Constraint, Int32Words, no_tokens
from ...text import Healer
from ...tokens import Token, Vocabulary

if TYPE_CHECKING:
    from .sequence import Sequence


def fed(
    sequence: Sequence, token: Token, vocabulary: Vocabulary, *, ignore_eos: bool
) -> list[Token] | None:
    """The tokens that a sequence's filters take for its next one; ``None``: the token itself.

    Raises ``FilterError`` for an end token where they do not let the text end.
    """
    if token in vocabulary.eos:
        constraint = sequence.constraint
        if not ignore_eos and constraint is not None and not constraint.can_end():
            raise FilterError(
                f"the end token {token} is not allowed at position {sequence.generated}: "
                "the filters do not let the text end there"
            )
        return []
    if sequence.healer is not None and not sequence.healer.done:
        return healing_feed(sequence.healer, vocabulary, token)
    return None


def healing_feed(healer: Healer, vocabulary: Vocabulary, token: Token) -> list[Token]:
    """The tokens that filters take instead of ``token``: its bytes behind the prompt's."""
    return _spell(vocabulary, healer.suffix(token))


def healing_mask(
    healer: Healer, constraint: Constraint | None, vocabulary: Vocabulary, vocab_size: int
) -> Int32Words:
    """The tokens that go on spelling the prompt's end, and that the filters allow beyond it.

    Raises ``DeadEndError`` when the filters allow none of them.
    """
    candidates = healer.candidates()
    candidates = candidates[candidates < vocab_size]
    if constraint is not None:
        allowed = constraint.mask()
        if allowed is not None:
            keep = [_allows(constraint, allowed, vocabulary, healer, int(t)) for t in candidates]
            candidates = candidates[np.array(keep, dtype=bool)]
    if not len(candidates):
        raise DeadEndError(
            f"the filters allow no token that goes on from the prompt's end {healer.remaining!r}; "
            "use heal=False"
        )
    words = no_tokens(vocab_size)
    bits = np.left_shift(np.uint32(1), (candidates % 32).astype(np.uint32))
    np.bitwise_or.at(words.view(np.uint32), candidates // 32, bits)
    return words


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
        return bool(allowed[run[0] // 32] >> (run[0] % 32) & 1)
    return constraint.validate(run) == len(run)
