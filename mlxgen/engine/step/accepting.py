"""What the draws of a step become, handle by handle, and along drafted positions."""

from __future__ import annotations

from typing import NamedTuple

from ...tokens import Token
from ..chunk import Chunk, Rejected
from ..drafts.guess import Guess
from ..request.accept import accept
from ..request.objections import Verdict
from .drawn import Drawn, DrawnView
from .handle import Handle

SORTED_DRAWS = 16  # draws that sort the vocabulary at once, after one whose candidates fell short


class Event(NamedTuple):
    """What came of one sequence: chunks, or, last of all, an error that concerns it alone.

    After an error, or when its request has a finish reason, the caller takes the handle out, or
    rewinds it, before the next step.
    """

    handle: Handle
    chunks: list[Chunk]
    error: Exception | None = None


def accept_draws(handle: Handle, tokens: list[Token], drawn: Drawn, place: int) -> Event:
    """Decide on one draw, and on those after it that were drafted."""
    handle.flat = SORTED_DRAWS if place in drawn.redrawn else max(0, handle.flat - 1)
    chunks: list[Chunk] = []
    try:
        if handle.guess is None:
            _accept_one(handle, tokens[place], DrawnView(drawn, place))
        else:
            _accept_guess(handle, handle.guess, tokens, drawn, place, chunks)
    except Exception as error:
        handle.forget()
        return Event(handle, [*chunks, *handle.take()], error)  # with what was accepted before it
    return Event(handle, [*chunks, *handle.take()])


def _accept_one(
    handle: Handle,
    token: Token,
    view: DrawnView,
    *,
    drafter: str = "",
    missed: Rejected | None = None,
) -> Verdict:
    if token < 0:
        token = view.token  # raises
    return accept(handle.request, token, view, drafter=drafter, missed=missed)


def _accept_guess(
    handle: Handle,
    guess: Guess,
    tokens: list[Token],
    drawn: Drawn,
    place: int,
    chunks: list[Chunk],
) -> None:
    """Accept position after position, as long as what is drawn is what was drafted.

    What each of them releases goes to ``chunks`` before the next one, as without a draft: so hooks
    may take back as much, and the text is divided alike.
    """
    history = handle.history
    start = len(history)
    at = accepted = draws = 0
    handle.guess = None
    drafted, tells = [*guess.tokens, -1], handle.request.options.top_logprobs is not None
    while True:
        token = tokens[place + at]
        stands = token == drafted[at]
        accepted += stands
        draws += 1
        drafter = guess.drafter if stands else ""
        misses = tells and not stands and drafted[at] >= 0
        missed = Rejected(drafted[at], "draft", guess.drafter) if misses else None
        view = DrawnView(drawn, place + at)
        verdict = _accept_one(handle, token, view, drafter=drafter, missed=missed)
        at = len(history) - start
        if verdict is not Verdict.NEXT or at >= len(guess.draws):
            break
        if history[start:] != drafted[:at] or handle.request.strayed:
            break
        chunks += handle.take()
    skipped = max(0, at - draws)  # tokens that filters forced: they were appended without a draw
    proposed = max(accepted, len(guess.tokens) - skipped)
    handle.drafts.saw(proposed, accepted)
