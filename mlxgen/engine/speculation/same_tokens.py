"""Whether two models mean the same by every token.

A draft in other tokens would be nonsense.
"""

from __future__ import annotations

from ...errors import OptionError
from ...tokens import Vocabulary


def check_same_tokens(mine: Vocabulary, theirs: Vocabulary, name: str) -> None:
    """Raise ``OptionError`` unless every token is the same for both models."""
    if mine is theirs:
        return
    difference = mine.derived(("differs from", theirs), lambda: _difference(mine, theirs))
    if difference is not None:
        wanted, got = difference
        raise OptionError(
            "draft",
            f"expected {wanted}, got {got} of {name}; take a draft of the same model family",
        )


def _difference(mine: Vocabulary, theirs: Vocabulary) -> tuple[str, object] | None:
    if mine.eos != theirs.eos:
        return f"the end tokens {sorted(mine.eos)}", sorted(theirs.eos)
    if mine.size != theirs.size:
        return f"a tokenizer of {mine.size} tokens", theirs.size
    for token in range(mine.size):
        one, other = mine.pieces[token], theirs.pieces[token]
        if one != other:
            return f"token {token} to be {one!r}", repr(other)
    return None
