"""The tokens that may be drawn next, from all that restricts them.

Owns the order in which healing, filters, exclusions, the forced way to an end and
``min_tokens`` come together. Must never change any of them but ``Closing``, which looks for
another way where its own is excluded. Invariant: a mask that is returned allows at least one token.
"""

from __future__ import annotations

from collections.abc import Set

from ...errors import DeadEndError
from ...filters import Int32Words, without_tokens, words_of
from ...tokens import Token, Vocabulary
from ..options import Options
from .closing import Closing
from .healing import healing_mask
from .sequence import Sequence


def next_mask(
    sequence: Sequence,
    options: Options,
    closing: Closing | None,
    exclude: Set[Token],
    steered: Int32Words | None,
    vocabulary: Vocabulary,
    vocab_size: int,
) -> Int32Words | None:
    """The allowed next tokens as packed bits; ``None``: all of them.

    ``exclude`` are those that bans and hooks have ruled out there, and ``steered`` those that a
    controller allows. Raises ``DeadEndError`` where nothing is left.
    """
    constraint, healer = sequence.constraint, sequence.healer
    words: Int32Words | None
    if healer is not None and not healer.done:
        words = healing_mask(healer, constraint, vocabulary, vocab_size)
    else:
        words = constraint.mask() if constraint is not None else None
    if closing is not None and closing.forcing:
        step = closing.way[:1] if closing.way else sorted(vocabulary.eos - exclude)
        if not step or not exclude.isdisjoint(step):
            step = closing.avoid(exclude)
        if step:
            return words_of(step, vocab_size)
    excluded = frozenset(exclude)
    if sequence.generated < options.min_tokens:
        singles = (s[0] for s in options.stop_tokens if len(s) == 1)
        excluded = excluded.union(vocabulary.eos, singles)
    elif options.ignore_eos and constraint is not None:
        excluded = excluded.union(vocabulary.eos)
    if steered is not None:
        words = steered if words is None else words & steered
    elif not excluded:
        return words
    if excluded:
        words = without_tokens(words, excluded, vocab_size)
    assert words is not None
    if not words.any():
        by = "excluded or banned" + (
            ", or refused by the filters" if constraint is not None else ""
        )
        by += ", or not in the controller's mask" if steered is not None else ""
        raise DeadEndError(
            f"position {sequence.generated} is given up: every token there is {by}; allow more, "
            "or rewind further"
        )
    return words
