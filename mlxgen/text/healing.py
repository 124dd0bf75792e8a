"""Token healing: the model spells the end of a prompt again, with its own choice of tokens.

``heal_plan`` decides which tokens to take back from a prompt, and ``Healer`` which tokens may spell
their text again. All comparisons are of bytes, because a token may start inside a character.

Invariant: the tokens that a healer has accepted spell ``removed`` and what follows it, and no
candidate leads to a place from which no token continues.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import FilterError
from ..forks import Steps
from ..tokens.vocabulary import Token, TokenIds, Vocabulary

MOST_TOKENS = 8
"""The most tokens that are taken back from a prompt."""


def heal_plan(vocabulary: Vocabulary, prompt: Sequence[Token]) -> tuple[list[Token], bytes]:
    """The tokens to keep of a prompt, and the bytes of those taken back from its end.

    Takes back the longest run of last tokens, up to ``MOST_TOKENS``, such that a single token
    spells all of them and more; none if there is no such run. The first token stays, and so do
    added tokens and everything before them.
    """
    joined = removed = b""
    kept = len(prompt)
    for index in range(len(prompt) - 1, max(0, len(prompt) - 1 - MOST_TOKENS), -1):
        token = prompt[index]
        if not vocabulary.is_ordinary(token) or token in vocabulary.added:
            break
        joined = vocabulary.piece(token) + joined
        # Sorted by bytes: tokens that spell exactly this come first.
        if any(vocabulary.piece(int(id)) != joined for id in vocabulary.starting_with(joined)[-1:]):
            kept, removed = index, joined
    return list(prompt[:kept]), removed


class Healer(Steps[int]):
    """The tokens that may come until ``removed`` has been spelled again.

    Each step is a token; its state is how many bytes of ``removed`` have been spelled after it.
    """

    __slots__ = ("_passable", "_vocabulary", "removed")

    _TABLES = ("_vocabulary",)

    def __init__(self, vocabulary: Vocabulary, removed: bytes) -> None:
        self.removed = removed
        self._vocabulary = vocabulary
        self._passable = _passable(vocabulary, removed)
        super().__init__(0)

    @property
    def remaining(self) -> bytes:
        """The bytes of ``removed`` that are not spelled yet."""
        return self.removed[self._steps[-1] :]

    @property
    def done(self) -> bool:
        """Whether nothing remains, so that every token may come."""
        return self._steps[-1] == len(self.removed)

    def candidates(self) -> TokenIds:
        """The ordinary tokens that may come next, in no particular order.

        Their bytes start with what remains, or are a beginning of it that other tokens can
        complete. When nothing remains, all ordinary tokens are candidates.
        """
        remaining, offset = self.remaining, self._steps[-1]
        within = [
            self._vocabulary.spelling(remaining[:length])
            for length in range(1, len(remaining))
            if offset + length in self._passable
        ]
        return np.concatenate([self._vocabulary.starting_with(remaining), *within])

    def suffix(self, token: Token) -> bytes:
        """The bytes that the token, if it came next, would spell beyond what remains."""
        return self._vocabulary.piece(token)[len(self.remaining) :]

    def advance(self, token: Token) -> None:
        """Takes the next token. FilterError, and no change, if it is not a candidate."""
        offset, remaining = len(self.removed), self.remaining
        if remaining:
            piece = self._vocabulary.piece(token)
            if len(piece) >= len(remaining):
                allowed = piece.startswith(remaining)
            else:
                within = self._steps[-1] + len(piece) in self._passable
                allowed = within and remaining.startswith(piece)
            if not allowed or not self._vocabulary.is_ordinary(token):
                raise FilterError(
                    f"expected a token that spells {remaining!r}, which token healing took "
                    f"back from the prompt, got token {token} ({piece!r})"
                )
            offset = min(offset, self._steps[-1] + len(piece))
        self._steps.append(offset)


def _passable(vocabulary: Vocabulary, data: bytes) -> frozenset[int]:
    """The offsets in ``data`` from which tokens can spell the rest, or the rest and more."""
    found = {len(data)}
    for start in range(len(data) - 1, -1, -1):
        if len(vocabulary.starting_with(data[start:])) or any(
            vocabulary.token_of(data[start:end]) is not None for end in found if end > start
        ):
            found.add(start)
    return frozenset(found)
