"""The draw of a batch: read from the device once, seen by each request through a view, and accepted
row by row and along drafted positions.

Invariant: what a view shows belongs to the draw that gave its token, whatever was submitted since.
An array sliced or computed only now would wait for all of that, so whole arrays are converted that
were submitted with the draw, and rows are taken on the host. ``looked_for`` says what a view was
asked for, so that the next draw reports it: what nobody looks at is never computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ...errors import ModelError
from ...sampling import CANDIDATES, DrawRow, Sampler, Want
from ...tokens import Token
from ..chunk import Chunk, Rejected
from ..drafts.drafts import Guess
from ..kv.held import HERE, Here, Unread
from ..request.accept import accept
from .handle import Handle
from .pace import NOTHING, Submitted


class Drawn(Unread):
    """A submitted draw from ``logits`` [batch, vocab], one row for each of ``requests``. ``after``:
    what was submitted before this draw. ``redrawn``: rows whose candidates fell short, drawn anew
    with a full sort; their tokens in ``array`` do not count."""

    __slots__ = (
        "_draw",
        "_report",
        "_sampler",
        "_tokens",
        "after",
        "logits",
        "redrawn",
        "requests",
        "want",
    )

    def __init__(
        self,
        sampler: Sampler,
        logits: mx.array,
        requests: Sequence[DrawRow],
        want: Want,
        *,
        exact: bool = False,
        here: Here = HERE,
        after: Submitted = NOTHING,
    ) -> None:
        self._sampler = sampler
        self.after = after
        self.logits = logits
        self.requests = requests
        self.want = want
        self.redrawn: dict[int, Drawn] = {}
        self._tokens: list[Token] | None = None
        self._report: dict[str, npt.NDArray[Any] | None] = {}  # ``Draw`` but the tokens
        draw = self._draw = sampler.sample(logits, requests, want=want, exact=exact)
        self.array, self.known, self._here = draw.token, None, here
        here.submit(draw)

    def tokens(self) -> list[Token]:
        """The tokens; waits for the device. -1 if the logits allow no draw."""
        if self._tokens is None:
            tokens, sampler, here = self.known or self.read(), self._sampler, self._here
            if self._draw.exact is not None:
                tokens = list(tokens)
                for row, exact in enumerate(here.read(self._draw.exact)):
                    if not exact:
                        logits, requests = self.logits[row : row + 1], self.requests[row : row + 1]
                        again = Drawn(sampler, logits, requests, self.want, exact=True, here=here)
                        self.redrawn[row], tokens[row] = again, again.tokens()[0]
            self._tokens = tokens
        return self._tokens

    def reported(self, name: str, row: int) -> Any:
        """A row of a field of the draw that gave the row's token; None if it is not reported."""
        self.tokens()
        if row in self.redrawn:
            return self.redrawn[row].reported(name, 0)
        if name not in self._report:
            array = getattr(self._draw, name)
            self._report[name] = None if array is None else np.array(array)
        whole = self._report[name]
        return None if whole is None else whole[row]


class DrawnView:
    """What one request may see of a draw; it is the ``DrawView`` of its hooks."""

    def __init__(self, drawn: Drawn, row: int) -> None:
        self._drawn = drawn
        self._row = row
        self.looked_for: Want | None = None  # beyond what the request wants anyway

    @cached_property
    def token(self) -> Token:
        """The token; raises ``ModelError`` if the logits allow no draw."""
        token = self._drawn.tokens()[self._row]
        if token < 0:
            raise ModelError(
                f"the logits at position {self._drawn.requests[self._row].position} hold NaN or "
                "infinity, or allow no token; check the weights and their precision"
            )
        return token

    @cached_property
    def logits(self) -> npt.NDArray[np.float32]:
        self._drawn.tokens()
        return _floats(self._drawn.logits, self._row)

    @cached_property
    def candidates(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        self._look(candidates=CANDIDATES)
        if self._drawn.want.candidates < CANDIDATES:
            best = np.argsort(-self.distribution, kind="stable")[:CANDIDATES].astype(np.int32)
            best = best[self.distribution[best] > 0]
            return best, self.distribution[best]
        return self.best(CANDIDATES)

    @cached_property
    def distribution(self) -> npt.NDArray[np.float32]:
        """The final distribution [vocab], computed anew: for what the draw does not report."""
        drawn, row = self._drawn, self._row
        whole = drawn._sampler.distribution(drawn.logits[row : row + 1], [drawn.requests[row]])
        return np.array(whole[0])

    def probability(self, token: Token) -> float:
        self._look(prob=True)
        prob = self._reported("prob")
        if prob is not None and self.token == token:
            return float(prob)
        return float(self.distribution[token])

    def share(self, token: Token) -> float | None:
        share = self._reported("share")
        return None if share is None or self.token != token else float(share)

    def best(self, count: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The first ``count`` candidates at most, if the draw was asked for them beforehand."""
        ids, probs = self._reported("candidates"), self._reported("candidate_probs")
        assert ids is not None, "candidates are computed only if they are wanted"
        known = ids[:count] >= 0  # there may be fewer
        return ids[:count][known], probs[:count][known]

    def report(self, token: Token, top: int) -> tuple[float | None, list[tuple[Token, float]]]:
        """The log-probability of ``token``, and the ``top`` likeliest tokens with theirs."""
        logprob = self._reported("logprob")
        assert logprob is not None, "log-probabilities are computed only if they are wanted"
        if self.token != token:
            logits = self.logits.astype(np.float64)
            peak = logits.max()
            logprob = logits[token] - peak - np.log(np.exp(logits - peak).sum())
        tokens, values = self._reported("top_tokens"), self._reported("top_logprobs")
        if not top or tokens is None:
            return float(logprob), []
        pairs = zip(tokens[:top].tolist(), values[:top].tolist(), strict=True)
        return float(logprob), list(pairs)

    def _reported(self, name: str) -> Any:
        return self._drawn.reported(name, self._row)

    def _look(self, *, prob: bool = False, candidates: int = 0) -> None:
        seen = self.looked_for or Want()
        self.looked_for = seen._replace(
            prob=prob or seen.prob, candidates=max(candidates, seen.candidates)
        )


def _floats(array: Any, row: int) -> npt.NDArray[np.float32]:
    """A copy of a row of an ``mx.array`` [n, any] of floats, converted on the host."""
    floats: npt.NDArray[np.float32]
    if array.dtype != mx.bfloat16:
        floats = np.asarray(array)[row].astype(np.float32)
        return floats
    view = memoryview(array)
    if not view.c_contiguous:  # this waits; logits of models are contiguous
        view = memoryview(mx.contiguous(array))  # type: ignore[arg-type]
    halves = np.frombuffer(view, np.uint16).reshape(array.shape)[row]
    floats = (halves.astype(np.uint32) << 16).view(np.float32)  # the upper halves of float32
    return floats


# ---- acceptance --------------------------------------------------------------------------------

SORTED_DRAWS = 16  # draws that sort the vocabulary at once, after one whose candidates fell short


class Event(NamedTuple):
    """The outcome for one sequence: chunks, or, last of all, an error that concerns it alone.

    After an error, or when its request has a finish reason, the caller takes the handle out, or
    rewinds it, before the next step.
    """

    handle: Handle
    chunks: list[Chunk]
    error: Exception | None = None


def accept_draws(
    handle: Handle, tokens: list[Token], drawn: Drawn, place: int, steps: float
) -> Event:
    """Accept one draw, and those after it that were drafted; the step took as long as ``steps``
    plain ones, or 0 if that is not known."""
    handle.flat = SORTED_DRAWS if place in drawn.redrawn else max(0, handle.flat - 1)
    chunks: list[Chunk] = []
    try:
        if handle.guess is not None:
            _accept_guess(handle, handle.guess, tokens, drawn, place, steps, chunks)
        else:
            view, token = DrawnView(drawn, place), tokens[place]
            accept(handle.request, view.token if token < 0 else token, view)
            if handle.drafts.turn is not None:  # it waited for a draft that did not come
                handle.drafts.saw(0, 0, steps)
        chunks += handle.take()
    except Exception as error:
        handle.forget()
        return Event(handle, [*chunks, *handle.take()], error)  # with the chunks accepted before it
    return Event(handle, chunks)


def _accept_guess(
    handle: Handle,
    guess: Guess,
    tokens: list[Token],
    drawn: Drawn,
    place: int,
    steps: float,
    chunks: list[Chunk],
) -> None:
    """Accept position after position, as long as the drawn token is the drafted one; a single
    position if a controller decides on each draw: then the rest of the guess stays.

    Each position's chunks are added to ``chunks`` before the next is accepted, as without a draft:
    so hooks may take back as much, and the text is divided alike.
    """
    request, history, due = handle.request, handle.history, handle.draws
    start, moment = len(history), history.moment
    drafted = [*guess.tokens[start - guess.start :], -1]
    at = accepted = draws = 0
    handle.guess = None
    while True:
        view, token = DrawnView(drawn, place + at), tokens[place + at]
        if token < 0:
            token = view.token  # raises
        stands, missed = token == drafted[at], None
        accepted += stands
        draws += 1
        if not stands and drafted[at] >= 0 and request.options.top_logprobs is not None:
            missed = Rejected(drafted[at], "draft", guess.drafter)
        drafter = guess.drafter if stands else ""
        goes_on = accept(request, token, view, drafter=drafter, missed=missed)
        at = len(history) - start
        if not goes_on or at >= due or request.strayed:
            break
        goes_on = at >= draws and history.low_since(moment) >= start  # no splice took any back
        if not goes_on or history[start:] != drafted[:at]:
            break
        chunks += handle.take()
    drafts = handle.drafts
    if not handle.asks_each:
        skipped = max(0, at - draws)  # tokens that filters forced were appended without a draw
        proposed = max(accepted, len(guess.tokens) - skipped)
        drafts.count(proposed, accepted)
        drafts.saw(proposed, accepted, guess.steps * steps)
        return
    drafts.count(int(drafted[0] >= 0), accepted)
    if accepted and not handle.has_ended:
        handle.guess = guess
    else:  # its steps also took the time of the controller's decisions
        stood = start - guess.start + accepted
        drafts.saw(stood + int(drafted[0] >= 0) - accepted, stood, 0.0)
