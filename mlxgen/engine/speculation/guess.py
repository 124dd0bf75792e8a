"""Drafted tokens of one request on their way through the model.

Owns what was proposed, and the draws at each of its positions. Must never change the request.
Invariant: there is one more of ``requests`` than tokens to verify.

A drafted token is accepted if it is what the request draws at its position. So a draft never
changes the text, sampled or not, whatever was drafted and when.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...sampling import DrawRow
from ...tokens import Token
from ..kv import Fed
from ..kv.held import known
from ..request.drawing import plain_draw
from ..request.request import Request
from .ahead import draws_behind


class Guess:
    """See the module. ``fed`` are the drafted tokens, possibly not known yet; ``free``: the draws
    after them depend only on their positions."""

    __slots__ = ("_tokens", "fed", "free", "requests")

    def __init__(self, fed: Sequence[Fed], *, free: bool = False) -> None:
        self.fed, self.free = fed, free
        self._tokens: list[Token] | None = None
        self.requests: list[DrawRow] = []

    @property
    def tokens(self) -> list[Token]:
        """The drafted tokens; this waits for the draft, once."""
        if self._tokens is None:
            self._tokens = known(self.fed)
        return self._tokens

    def look(self, request: Request) -> None:
        """Find the draws of all positions, while the model runs."""
        if self.requests:
            return
        if self.free:
            start = request.position
            self.requests = [plain_draw(request, start + i) for i in range(len(self.fed) + 1)]
        else:
            self.requests = draws_behind(request, self.tokens)
