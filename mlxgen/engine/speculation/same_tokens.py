"""Whether two models mean the same by every token that both have.

A draft in other tokens would be nonsense. Models of one family may differ in a few added tokens at
the end, and in those that end a text: what a draft does not know it never proposes, and the end of
a text is the main model's affair.
"""

from __future__ import annotations

from ...errors import OptionError
from ...tokens import Vocabulary

MOST_MORE = 128  # tokens that one of them may have more than the other, as in llama.cpp


def check_same_tokens(mine: Vocabulary, theirs: Vocabulary, name: str) -> None:
    """Raise ``OptionError`` unless every token that both models have is the same for both."""
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
    if abs(mine.size - theirs.size) > MOST_MORE:
        return f"a tokenizer of {mine.size} tokens", theirs.size
    for token in range(min(mine.size, theirs.size)):
        one, other = mine.pieces[token], theirs.pieces[token]
        if one != other:
            return f"token {token} to be {one!r}", repr(other)
    return None
