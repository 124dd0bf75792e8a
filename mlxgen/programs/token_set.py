"""Sets of tokens, with the operations of sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from ..engine.branches import token_ids
from ..errors import OptionError
from ..filters import Int32Words, tokens_of, word_count, words_of
from ..tokens import Token


class TokenSet(Collection[Token]):
    """A set of ids below ``size``, the width of the logits. It can serve as a ``sample_mask``."""

    __slots__ = ("_bits", "size")

    def __init__(self, tokens: Iterable[Token], size: int) -> None:
        self.size: int = size
        self._bits: int
        if not isinstance(tokens, TokenSet):
            words = words_of(token_ids("tokens", tokens, size), size)
            self._bits = int.from_bytes(words.tobytes(), "little")
        elif tokens.size == size:
            self._bits = tokens._bits
        else:
            raise OptionError(
                "tokens",
                f"expected a set of {size} tokens, got one of {tokens.size}; do not mix them",
            )

    @classmethod
    def everything(cls, size: int) -> TokenSet:
        """All tokens."""
        return ~cls((), size)

    @classmethod
    def nothing(cls, size: int) -> TokenSet:
        """No token."""
        return cls((), size)

    def _with(self, bits: int) -> TokenSet:
        made = TokenSet((), self.size)
        made._bits = bits
        return made

    @property
    def words(self) -> Int32Words:
        """Its bits, packed as filters pack them, and read-only."""
        return np.frombuffer(self._bits.to_bytes(word_count(self.size) * 4, "little"), np.int32)

    def __contains__(self, token: object) -> bool:
        return isinstance(token, int) and token >= 0 and bool(self._bits >> token & 1)

    def __iter__(self) -> Iterator[Token]:
        return iter(tokens_of(self.words).tolist())

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenSet):
            return False
        return (self.size, self._bits) == (other.size, other._bits)

    def __hash__(self) -> int:
        return hash((self.size, self._bits))

    def __repr__(self) -> str:
        return f"<TokenSet of {len(self)} of {self.size} tokens>"

    def __or__(self, other: Iterable[Token]) -> TokenSet:
        return self._with(self._bits | TokenSet(other, self.size)._bits)

    def __and__(self, other: Iterable[Token]) -> TokenSet:
        return self._with(self._bits & TokenSet(other, self.size)._bits)

    def __sub__(self, other: Iterable[Token]) -> TokenSet:
        return self._with(self._bits & ~TokenSet(other, self.size)._bits)

    def __invert__(self) -> TokenSet:
        return self._with(~self._bits & ((1 << self.size) - 1))
