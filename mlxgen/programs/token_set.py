"""Sets of tokens as packed bits, with the operations of sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from ..engine.branches import token_ids
from ..errors import OptionError
from ..filters import Int32Words, allows, no_tokens, tokens_of, words_of
from ..tokens import Token


class TokenSet(Collection[Token]):
    """A set of ids below ``size``, the width of the logits. It can serve as a ``sample_mask``.

    ``words`` are its bits, packed as filters pack them, and read-only; no bit from ``size``
    on is set.
    """

    __slots__ = ("size", "words")

    def __init__(self, tokens: Iterable[Token], size: int) -> None:
        if isinstance(tokens, TokenSet):
            tokens._check(size)
            self._take(tokens.words, size)
        else:
            self._take(words_of(token_ids("tokens", tokens, size), size), size)

    @classmethod
    def everything(cls, size: int) -> TokenSet:
        """All tokens."""
        return ~cls.nothing(size)

    @classmethod
    def nothing(cls, size: int) -> TokenSet:
        """No token."""
        return cls._of(no_tokens(size), size)

    @classmethod
    def _of(cls, words: Int32Words, size: int) -> TokenSet:
        made = cls.__new__(cls)
        made._take(words, size)
        return made

    def _take(self, words: Int32Words, size: int) -> None:
        words.flags.writeable = False
        self.words = words
        self.size = size

    def _check(self, size: int) -> None:
        if self.size != size:
            raise OptionError(
                "tokens",
                f"expected a set of {size} tokens, got one of {self.size}; do not mix them",
            )

    def __contains__(self, token: object) -> bool:
        return isinstance(token, int) and allows(self.words, token)

    def __iter__(self) -> Iterator[Token]:
        return iter(tokens_of(self.words).tolist())

    def __len__(self) -> int:
        return len(tokens_of(self.words))

    def __bool__(self) -> bool:
        return bool(self.words.any())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenSet) and np.array_equal(self.words, other.words)

    def __hash__(self) -> int:
        return hash((self.size, self.words.tobytes()))

    def __repr__(self) -> str:
        return f"<TokenSet of {len(self)} of {self.size} tokens>"

    def __or__(self, other: Iterable[Token]) -> TokenSet:
        return TokenSet._of(self.words | TokenSet(other, self.size).words, self.size)

    def __and__(self, other: Iterable[Token]) -> TokenSet:
        return TokenSet._of(self.words & TokenSet(other, self.size).words, self.size)

    def __sub__(self, other: Iterable[Token]) -> TokenSet:
        return TokenSet._of(self.words & ~TokenSet(other, self.size).words, self.size)

    def __invert__(self) -> TokenSet:
        words = ~self.words
        if self.size % 32:
            words[-1] &= np.int32((1 << self.size % 32) - 1)
        return TokenSet._of(words, self.size)
