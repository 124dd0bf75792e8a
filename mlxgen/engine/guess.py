"""Drafted tokens of one row on their way through the model.

Owns what was proposed, and the draws at each of its positions. Must never change the row.
Invariant: ``requests`` are one more than the tokens that are tested.

A drafted token stands where it is what the row draws there. So a draft never changes the
text, sampled or not, and it does not matter what was drafted, nor when.
"""

from __future__ import annotations

from typing import cast

from ..sampling import DrawRow
from ..tokens import Token
from .ahead import draws_behind
from .drafting import Proposal
from .row import Row


class Guess:
    """See the module. ``array`` [count] are the tokens that go through the model."""

    __slots__ = ("_tokens", "array", "count", "free", "requests")

    def __init__(self, proposal: Proposal) -> None:
        self.array, self.free = proposal
        self.count = int(self.array.shape[0])
        self._tokens: list[Token] | None = None
        self.requests: list[DrawRow] = []

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
