"""A vocabulary without a tokenizer, from its facts alone.

Text is spelled with the longest tokens that fit. Pickled, it takes nothing else along.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from .pieces import Pieces
from .vocabulary import Token, Vocabulary


class SpelledVocabulary(Vocabulary):
    """The tokens of ``pieces``, and what ``Vocabulary`` says of them."""

    def __init__(
        self,
        pieces: Sequence[bytes],
        eos: frozenset[Token],
        special: frozenset[Token],
        added: frozenset[Token],
        strips_space: bool,
    ) -> None:
        self.pieces = tuple(pieces)
        self.size = len(self.pieces)
        self.eos, self.special, self.added = eos, special, added
        self.strips_space = strips_space
        self._pieces = Pieces(self.pieces, lambda _, piece: piece, strips_space, frozenset())
        self._derived = {}
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Callable[..., Vocabulary], tuple[Any, ...]]:
        return SpelledVocabulary, (self.pieces, *facts_of(self))

    def _tokenize(self, data: bytes) -> list[Token] | None:
        return None


def facts_of(
    vocabulary: Vocabulary,
) -> tuple[frozenset[Token], frozenset[Token], frozenset[Token], bool]:
    """What a ``SpelledVocabulary`` needs to know besides the pieces."""
    return vocabulary.eos, vocabulary.special, vocabulary.added, vocabulary.strips_space
