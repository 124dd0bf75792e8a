"""The draws behind tokens that are not certain yet.

Owns a look along drafted tokens: what each position's draw would be if they stood. Must never
decide anything about them. Invariant: afterwards the sequence is what it was, as every part
is advanced and rewound in step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import DeadEndError, FilterError
from ...sampling import DrawRow
from ...tokens import Token
from ..request.row import Row

Next = Callable[[DrawRow], Token | None]
"""From the draw of a position to a token to go on with; ``None``: no further."""


def walk(row: Row, choose: Next) -> list[DrawRow]:
    """The draws at the end of the history and behind each token that ``choose`` names.

    Ends where ``choose`` does, at the budget, and where a token would end the text or is not
    allowed. Raises what ``Row.request`` raises for the first position.
    """
    sequence = row.sequence
    start = len(sequence)
    request = _kept(row.request())
    requests = [request]
    try:
        while sequence.generated + 1 < row.budget:
            token = choose(request)
            if token is None:
                break
            try:
                event = sequence.advance(token, row.feed(token))
                if event is not None or row.ends(token):
                    break
                request = _kept(row.request())
            except (FilterError, DeadEndError):
                break
            requests.append(request)
    finally:
        sequence.rewind(start)
    return requests


def draws_behind(row: Row, tokens: Sequence[Token]) -> list[DrawRow]:
    """The draws at the end of the history and behind each of ``tokens``, as far as they go."""
    following = iter(tokens)
    return walk(row, lambda request: next(following, None))


def is_free(row: Row, count: int) -> bool:
    """Whether the next ``count`` draws depend on nothing but their positions."""
    sequence = row.sequence
    healing = sequence.healer is not None and not sequence.healer.done
    return (
        sequence.constraint is None
        and sequence.counts is None
        and not healing
        and row.position >= row.options.min_tokens
        and not row.has_exclusions(row.position, row.position + count)
    )


def _kept(request: DrawRow) -> DrawRow:
    """A request that stays as it is when the sequence goes on."""
    if request.counts is None:
        return request
    return request._replace(counts=request.counts.fork())
