"""Drafted tokens of one row on their way through the model.

Owns what was proposed, the draws at each of its positions, and which of it stood. Must never
change the row. Invariant: ``requests`` are one more than the tokens that are tested.
"""

from __future__ import annotations

from typing import cast

import mlx.core as mx

from ..sampling import DrawRow, Sampler, Verified
from ..tokens import Token
from .ahead import draws_behind
from .drafting import Proposal
from .row import Row


class Guess:
    """See the module. ``array`` [count] are the tokens that go through the model."""

    __slots__ = ("_probs", "_stands", "_tokens", "_verified", "array", "count", "free", "requests")

    def __init__(self, proposal: Proposal) -> None:
        self.array, self._probs, self.free = proposal
        self.count = int(self.array.shape[0])
        self._tokens: list[Token] | None = None
        self.requests: list[DrawRow] = []
        self._verified: Verified | None = None
        self._stands: list[tuple[bool, Token]] = []

    @property
    def tokens(self) -> list[Token]:
        """The drafted tokens; this waits for the draft."""
        if self._tokens is None:
            self._tokens = cast(list[int], self.array.tolist())
        return self._tokens

    def look(self, row: Row) -> None:
        """Find the draws of all positions, while the model runs."""
        if self.requests:
            return
        if self.free:
            start = row.position
            self.requests = [row.plain_request(start + i) for i in range(self.count + 1)]
        else:
            self.requests = draws_behind(row, self.tokens)

    def verify(self, sampler: Sampler, logits: mx.array) -> list[mx.array]:
        """Submit the test of the drafted tokens, if they were drawn; ``logits`` [n, vocab]."""
        count = len(self.requests) - 1
        if self._probs is None or count == 0:
            return []
        self._verified = sampler.verify(
            logits[:count], self.requests[:count], self.array[:count], self._probs[:count]
        )
        return list(self._verified)

    def token(self, place: int, drawn: Token) -> Token:
        """The token of a position, where the sampler has drawn ``drawn`` from all of them."""
        if self._verified is None or place >= len(self.requests) - 1:
            return drawn
        if not self._stands:
            flags, others = self._verified.stands.tolist(), self._verified.instead.tolist()
            assert isinstance(flags, list) and isinstance(others, list)
            self._stands = list(zip(flags, others, strict=True))  # type: ignore[arg-type]
        stands, other = self._stands[place]
        return self.tokens[place] if stands else other
