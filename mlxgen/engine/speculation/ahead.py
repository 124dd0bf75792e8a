"""The draws behind tokens that are not certain yet.

Owns a look along drafted tokens: what each position's draw would be if they stood. Must never
decide anything about them. Invariant: afterwards the request is what it was, as every part
is advanced and rewound in step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import DeadEndError, FilterError
from ...sampling import DrawRow
from ...tokens import Token
from ..request.drawing import next_draw
from ..request.ending import ends
from ..request.healing import fed
from ..request.request import Request

Next = Callable[[DrawRow], Token | None]
"""From the draw of a position to a token to go on with; ``None``: no further."""


def walk(request: Request, choose: Next) -> list[DrawRow]:
    """The draws at the end of the history and behind each token that ``choose`` names.

    Ends where ``choose`` does, at the budget, and where a token would end the text or is not
    allowed. Raises what ``next_draw`` raises for the first position.
    """
    start = len(request.history)
    draw = _kept(next_draw(request))
    draws = [draw]
    try:
        while request.position + 1 < request.budget:
            token = choose(draw)
            if token is None:
                break
            try:
                event = request.advance(token, fed(request, token))
                if event is not None or ends(request, token):
                    break
                draw = _kept(next_draw(request))
            except (FilterError, DeadEndError):
                break
            draws.append(draw)
    finally:
        request.rewind(start)
    return draws


def draws_behind(request: Request, tokens: Sequence[Token]) -> list[DrawRow]:
    """The draws at the end of the history and behind each of ``tokens``, as far as they go."""
    following = iter(tokens)
    return walk(request, lambda draw: next(following, None))


def _kept(draw: DrawRow) -> DrawRow:
    """A draw that stays as it is when the request goes on."""
    return draw if draw.counts is None else draw._replace(counts=draw.counts.fork())
