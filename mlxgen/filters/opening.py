"""The start of a text whose first space the decoder drops.

Owns the choice, made by the first token, between two running filters of the same
specification. Must never know what they allow, beyond the space that one of them wants first.

SentencePiece-style models begin their answer with a token such as ``▁{``: bytes `` {``, text
``{``. A filter constrains the text. So a first token that starts with a space is judged by
the filter ``behind_space``, which wants one space and then what is specified, and every other
first token by the ``plain`` one.

Invariant: after the first token exactly one of the two is in use; both are fresh before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..tokens import Token, Vocabulary
from .protocol import Filter, Int32Words, words_of
from .replay import Replay


class Opening:
    """Both ways in which a text may open; a filter with ``rewind`` and ``fork``."""

    def __init__(
        self, plain: Filter, behind_space: Filter, vocabulary: Vocabulary, vocab_size: int
    ) -> None:
        self._plain = Replay(plain)
        self._behind = Replay(behind_space)
        self._vocabulary = vocabulary
        self._spaced = _spaced(vocabulary, vocab_size)
        self._chosen: Replay | None = None

    def _choice(self, token: Token) -> Replay:
        if self._chosen is not None:
            return self._chosen
        return self._behind if self._vocabulary.piece(token).startswith(b" ") else self._plain

    def fill(self, row: Int32Words) -> bool:
        """As ``Filter.fill``."""
        if self._chosen is not None:
            return self._chosen.fill(row)
        behind = np.empty_like(row)
        if not self._behind.fill(behind):
            behind[:] = -1
        if not self._plain.fill(row):
            row[:] = -1
        row &= ~self._spaced
        row |= behind & self._spaced
        return True

    def asked(self) -> Sequence[Filter]:
        """The filters that ``fill`` asks."""
        return (self._chosen,) if self._chosen is not None else (self._plain, self._behind)

    def advance(self, token: Token) -> None:
        """As ``Filter.advance``."""
        chosen = self._choice(token)
        chosen.advance(token)
        self._chosen = chosen

    def can_end(self) -> bool:
        """As ``Filter.can_end``."""
        return (self._chosen or self._plain).can_end()

    def reset(self) -> None:
        """As ``Filter.reset``."""
        self.rewind(0)

    def rewind(self, to: int) -> None:
        """Back to the state after the first ``to`` tokens."""
        if self._chosen is not None:
            self._chosen.rewind(to)
            if to <= 0:
                self._chosen = None

    def fork(self) -> Opening:
        """An independent copy."""
        twin = object.__new__(Opening)
        twin._vocabulary = self._vocabulary
        twin._spaced = self._spaced
        twin._plain = self._plain.fork()
        twin._behind = self._behind.fork()
        twin._chosen = None
        if self._chosen is not None:
            twin._chosen = twin._behind if self._chosen is self._behind else twin._plain
        return twin

    def forced(self) -> Sequence[Token]:
        """As the filter in use; nothing before the first token, as there are two ways."""
        return self._chosen.forced() if self._chosen is not None else ()

    def hint(self) -> Sequence[Token]:
        """As the filter in use, or the plain one."""
        return (self._chosen or self._plain).hint()

    def validate(self, tokens: Sequence[Token]) -> int:
        """How many of ``tokens`` would be taken."""
        return self._choice(tokens[0]).validate(tokens) if tokens else 0


def _spaced(vocabulary: Vocabulary, vocab_size: int) -> Int32Words:
    """The tokens that start with a space."""
    return vocabulary.derived(
        ("spaced", vocab_size), lambda: words_of(vocabulary.starting_with(b" "), vocab_size)
    )
