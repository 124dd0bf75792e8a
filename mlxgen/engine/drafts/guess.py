"""Drafted tokens of one request on their way through the model, and the draws that verify them.

A drafted token is accepted if it is what the request draws at its position. So a draft never
changes the text, sampled or not, whatever was drafted and when. Invariant: the draws of positions
that may never come are found without changing the request, as all of its parts are advanced and
rewound together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ...sampling import DrawRow
from ...tokens import Token
from ..kv import Fed
from ..kv.held import known
from ..request.leads import next_draw
from ..request.request import Request

WIDEST = 32
"""Tokens of a pass, drafted ones included, that takes hardly longer than one of a single token."""

Next: TypeAlias = Callable[[DrawRow], Token | None]
"""Gives the token to continue with, from the draw of its position; ``None`` to end the walk."""


class Guess:
    """See the module. ``fed`` are the drafted tokens, possibly not known yet. ``draws`` are those
    of their positions and of the next one, as far as they are known; if none depends on what comes
    before it, the guess is ``free``. ``drafter``: the name of who proposed the tokens. ``start``:
    the length of the history before the first of them."""

    __slots__ = ("_tokens", "drafter", "draws", "fed", "free", "start")

    def __init__(self, fed: Sequence[Fed], draws: Sequence[DrawRow] = ()) -> None:
        self.fed = fed
        self._tokens: list[Token] | None = None
        self.draws = list(draws)
        self.free = bool(draws)
        self.drafter, self.start = "", 0

    @property
    def tokens(self) -> list[Token]:
        """The drafted tokens; this waits for the draft, once."""
        if self._tokens is None:
            self._tokens = known(self.fed)
        return self._tokens

    def look(self, request: Request) -> None:
        """Find the draws of all positions, while the model runs."""
        if not self.draws:
            following = iter(self.tokens)
            self.draws = walk(request, lambda draw: next(following, None))


def walk(request: Request, choose: Next) -> list[DrawRow]:
    """The draws at the end of the history and after each token that ``choose`` gives.

    The walk ends if ``choose`` gives None, at the budget, and at a token that would end the text
    or is not allowed. Raises what ``next_draw`` raises for the first position.
    """
    draw = next_draw(request)
    draws, start, constraint = [draw], len(request.history), request.constraint
    outlook = constraint.outlook if constraint is not None else None
    try:
        while request.position + 1 < request.budget:
            token = choose(draw)
            if token is None:
                break
            try:
                if request.advance(token) is not None or request.ends(token):
                    break
                draw = next_draw(request)
            except Exception:  # it may never come to this; if it does, the draw raises it again
                break
            draws.append(draw)
    finally:
        try:
            request.rewind(start)
        except BaseException:
            request.drop(start)
            raise
        if constraint is not None:
            constraint.outlook = outlook  # what is known of its next token stays known
    return draws
