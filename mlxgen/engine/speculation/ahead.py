"""The draws after tokens that are not certain yet.

Owns the walk along drafted tokens: which draw each position has if they are accepted. Must never
decide anything about them. Invariant: afterwards the request is as it was, as all parts are
advanced and rewound together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...sampling import DrawRow
from ...tokens import Token
from ..request.ending import ends
from ..request.leads import fed, next_draw
from ..request.request import Request

Next = Callable[[DrawRow], Token | None]
"""Gives the token to continue with, from the draw of its position; ``None`` to end the walk."""


def walk(request: Request, choose: Next) -> list[DrawRow]:
    """The draws at the end of the history and after each token that ``choose`` gives.

    The walk ends if ``choose`` gives None, at the budget, and at a token that would end the text
    or is not allowed. Raises what ``next_draw`` raises for the first position.
    """
    draw = _kept(next_draw(request))
    draws = [draw]
    with returning(request):
        while request.position + 1 < request.budget:
            token = choose(draw)
            if token is None:
                break
            try:
                if not goes_on(request, token):
                    break
                draw = _kept(next_draw(request))
            except Exception:  # it may never come to this; if it does, the draw raises it again
                break
            draws.append(draw)
    return draws


@contextmanager
def returning(request: Request) -> Iterator[None]:
    """Lets a request be advanced, and has it back where it was after that; what is known of its
    next token stays known."""
    start, constraint = len(request.history), request.constraint
    outlook = constraint.outlook if constraint is not None else None
    try:
        yield
    finally:
        try:
            request.rewind(start)
        except BaseException:
            request.drop(start)
            raise
        if constraint is not None:
            constraint.outlook = outlook


def goes_on(request: Request, token: Token) -> bool:
    """Advance by a token; whether the text goes on after it. Raises as ``Request.advance``."""
    return request.advance(token, fed(request, token)) is None and not ends(request, token)


def draws_behind(request: Request, tokens: Sequence[Token]) -> list[DrawRow]:
    """The draws at the end of the history and after each of ``tokens``, as far as possible."""
    following = iter(tokens)
    return walk(request, lambda draw: next(following, None))


def _kept(draw: DrawRow) -> DrawRow:
    """A draw that does not change when the request goes on."""
    return draw if draw.counts is None else draw._replace(counts=draw.counts.fork())
