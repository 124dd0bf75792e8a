"""What the draws of a step become, seat by seat.

Owns the walk along drafted positions, and where a seat stands afterwards. Must never run the
model. Invariant: afterwards the KV cache holds nothing that is not in the history, apart from
the one token of a look-ahead that turned out right.
"""

from __future__ import annotations

from typing import NamedTuple

from ..tokens import Token
from .chunk import Chunk
from .drawn import Drawn, DrawnView
from .guess import Guess
from .history import in_common
from .seat import Seat
from .verdict import Verdict


class Outcome(NamedTuple):
    """What a step came to for one seat: chunks, or an error that concerns it alone.

    After an error, or when its row has a finish reason, the seat takes no part in further
    steps; it is the caller's to take out, or to rewind.
    """

    seat: Seat
    chunks: list[Chunk]
    error: Exception | None = None


def settle(seat: Seat, tokens: list[Token], drawn: Drawn, place: int) -> Outcome:
    """Decide on one draw, and on those behind it that were drafted.

    Afterwards ``seat.ahead`` is right, or ``None``.
    """
    row, guess = seat.row, seat.guess
    before = row.position
    try:
        if guess is None:
            view = DrawnView(drawn, place)
            _settle_one(seat, tokens[place], view)
        else:
            _settle_guess(seat, guess, tokens, drawn, place)
    except Exception as error:
        seat.forget()
        return Outcome(seat, seat.take(), error)  # with what was accepted before it
    if row.finish_reason is not None:
        seat.forget()
    elif row.position != before or guess is not None:
        seat.logits = None
        if row.position != before + 1 or seat.kv.length != len(row.sequence):
            seat.ahead = None
    else:  # declined at once, and drawn again from the same logits
        seat.ahead = None
        if seat.kv.length != len(row.sequence):
            seat.logits = None
    return Outcome(seat, seat.take())


def _settle_one(seat: Seat, token: Token, view: DrawnView, *, from_draft: bool = False) -> Verdict:
    if token < 0:
        token = view.token  # raises
    verdict = seat.row.settle(token, view, from_draft=from_draft)
    return seat.row.fast_forward() if verdict is Verdict.NEXT else verdict


def _settle_guess(seat: Seat, guess: Guess, tokens: list[Token], drawn: Drawn, place: int) -> None:
    """Settle position after position, as long as what is drawn is what was drafted."""
    row, sequence = seat.row, seat.row.sequence
    start = len(sequence)
    at = accepted = 0
    seat.guess = None
    drafted = [*guess.tokens, -1]
    while True:
        token = tokens[place + at]
        stands = token == drafted[at]
        accepted += stands
        if not stands:  # the cache holds the drafted one and what came behind it
            seat.kv.rewind(start + at)
        verdict = _settle_one(seat, token, DrawnView(drawn, place + at), from_draft=stands)
        alike = in_common(sequence.history[start:], guess.tokens)
        seat.kv.rewind(start + alike)
        at = len(sequence) - start
        if verdict is not Verdict.NEXT or at != alike or at >= len(guess.requests):
            break
    seat.appetite.saw(row.position, len(guess.requests) - 1, accepted)
