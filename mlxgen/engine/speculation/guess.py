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
from ..kv import Fed, Later
from ..kv.held import known
from ..request.request import Request
from .ahead import draws_behind


class Guess:
    """See the module. ``fed`` are the drafted tokens, possibly not known yet. If all draws are
    known already, it is ``free``. ``drafter``: the name of who proposed the tokens."""

    __slots__ = ("_tokens", "drafter", "fed", "free", "requests")

    def __init__(self, fed: Sequence[Fed], draws: Sequence[DrawRow] = ()) -> None:
        self.fed = fed
        self._tokens: list[Token] | None = None
        self.requests = list(draws)
        self.free = bool(draws)
        self.drafter = ""

    def cut(self, count: int, vocab_size: int) -> Guess | None:
        """Its first ``count`` tokens, up to one that does not exist; ``None`` if none are left."""
        good = 0
        for token in self.fed[:count]:
            if not isinstance(token, Later) and not 0 <= token < vocab_size:
                break
            good += 1
        if good == len(self.fed):
            return self if good else None
        return Guess(self.fed[:good], self.requests[: good + 1]) if good else None

    @property
    def tokens(self) -> list[Token]:
        """The drafted tokens; this waits for the draft, once."""
        if self._tokens is None:
            self._tokens = known(self.fed)
        return self._tokens

    def look(self, request: Request) -> None:
        """Find the draws of all positions, while the model runs."""
        if not self.requests:
            self.requests = draws_behind(request, self.tokens)
