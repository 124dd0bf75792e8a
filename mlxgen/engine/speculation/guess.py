"""Drafted tokens of one row on their way through the model.

Owns what was proposed, and the draws at each of its positions. Must never change the row.
Invariant: ``requests`` are one more than the tokens that are tested.

A drafted token stands where it is what the row draws there. So a draft never changes the
text, sampled or not, and it does not matter what was drafted, nor when.
"""

from __future__ import annotations

from ...sampling import DrawRow
from ...tokens import Token
from ..kv import Later
from ..request.row import Row
from .ahead import draws_behind
from .drafting import Proposal


class Guess:
    """See the module. ``fed`` are the tokens that go through the model."""

    __slots__ = ("_tokens", "fed", "free", "requests")

    def __init__(self, proposal: Proposal) -> None:
        self.fed, self.free = proposal
        self._tokens: list[Token] | None = None
        self.requests: list[DrawRow] = []

    @property
    def tokens(self) -> list[Token]:
        """The drafted tokens; this waits for the draft, once."""
        if self._tokens is None:
            self._tokens = [t.read() if isinstance(t, Later) else t for t in self.fed]
        return self._tokens

    def look(self, row: Row) -> None:
        """Find the draws of all positions, while the model runs."""
        if self.requests:
            return
        if self.free:
            start = row.position
            self.requests = [row.plain_request(start + i) for i in range(len(self.fed) + 1)]
        else:
            self.requests = draws_behind(row, self.tokens)
