"""The draw of a batch, read from the device once, and what each request may see of it.

Invariant: what a view shows belongs to the draw that gave its token, whatever was submitted since.
An array that is sliced or computed only now waits for all of that, so whole arrays are converted
that were submitted with the draw, and rows are taken on the host. ``looked_for`` says what somebody
looked at, so that the next draw reports it at once: what nobody looks at is never computed.
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
from ..kv import Fed, Later, Unread
from ..kv.here import HERE, Here
from .pace import NOTHING, Submitted


class Reported(NamedTuple):
    """What a draw reports besides its tokens, as in ``Draw``."""

    prob: npt.NDArray[Any] | None
    candidates: npt.NDArray[Any] | None
    candidate_probs: npt.NDArray[Any] | None
    logprob: npt.NDArray[Any] | None
    top_tokens: npt.NDArray[Any] | None
    top_logprobs: npt.NDArray[Any] | None
    share: npt.NDArray[Any] | None


class Drawn:
    """A submitted draw from ``logits`` [batch, vocab], one row for each request; ``after`` what
    had been submitted before it."""

    __slots__ = (
        "_draw",
        "_here",
        "_lazy",
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
        self._here = here
        self.logits = logits
        self.requests = requests
        self.want = want
        self.redrawn: dict[int, Drawn] = {}  # rows whose candidates fell short, sorted in full
        self._tokens: list[Token] | None = None
        self._report: Reported | None = None
        self._draw = sampler.sample(logits, requests, want=want, exact=exact)
        self._lazy = Unread(self._draw.token, here)
        here.submit(self._draw)

    def later(self, row: int) -> Fed:
        """A row's token, to go on from before it is known."""
        return Later(self._lazy, row)

    def tokens(self) -> list[Token]:
        """The tokens; this waits for the device. -1 if the logits allow no draw.

        Rows in ``redrawn`` then have another token than ``later`` may say.
        """
        if self._tokens is None:
            tokens = self._lazy.read()
            if self._draw.exact is not None:
                tokens = list(tokens)
                for row, exact in enumerate(self._here.read(self._draw.exact)):
                    if not exact:
                        tokens[row] = self._draw_again(row)
            self._tokens = tokens
        return self._tokens

    def _draw_again(self, row: int) -> Token:
        at = slice(row, row + 1)
        logits, requests = self.logits[at], self.requests[at]
        again = Drawn(self._sampler, logits, requests, self.want, exact=True, here=self._here)
        self.redrawn[row] = again
        return again.tokens()[0]

    def inexact(self, row: int) -> bool:
        """Whether a row's candidates fell short, so that its token may be another than the lazy."""
        return row in self.redrawn

    def reported(self, row: int) -> tuple[Reported, int]:
        """What the draw reports that gave a row's token, and the row's place in it."""
        self.tokens()
        if row in self.redrawn:
            return self.redrawn[row].reported(0)
        if self._report is None:
            arrays = (getattr(self._draw, name) for name in Reported._fields)
            self._report = Reported(*[None if x is None else np.array(x) for x in arrays])
        return self._report, row


class DrawnView:
    """What one request may see of a draw; a ``DrawView`` of the hooks."""

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
        report, row = self._drawn.reported(self._row)
        if report.prob is not None and self.token == token:
            return float(report.prob[row])
        if report.candidates is not None:
            ids, probs = self.candidates
            found = np.flatnonzero(ids == token)
            if len(found):
                return float(probs[found[0]])
        return float(self.distribution[token])

    def share(self, token: Token) -> float | None:
        report, row = self._drawn.reported(self._row)
        if report.share is None or self.token != token:
            return None
        return float(report.share[row])

    def best(self, count: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The first ``count`` candidates at most, for which the draw was asked beforehand."""
        report, row = self._drawn.reported(self._row)
        assert report.candidates is not None, "candidates are computed only if they are wanted"
        assert report.candidate_probs is not None
        ids = report.candidates[row, :count]
        known = ids >= 0  # there may be fewer
        return ids[known], report.candidate_probs[row, :count][known]

    def report(self, token: Token, top: int) -> tuple[float | None, list[tuple[Token, float]]]:
        """The log-probability of ``token``, and the ``top`` likeliest tokens with theirs."""
        report, row = self._drawn.reported(self._row)
        assert report.logprob is not None, "log-probabilities are computed only if they are wanted"
        if self.token == token:
            logprob = float(report.logprob[row])
        else:
            logits = self.logits.astype(np.float64)
            peak = logits.max()
            logprob = float(logits[token] - peak - np.log(np.exp(logits - peak).sum()))
        if not top or report.top_tokens is None or report.top_logprobs is None:
            return logprob, []
        tokens, values = report.top_tokens[row, :top], report.top_logprobs[row, :top]
        return logprob, list(zip(tokens.tolist(), values.tolist(), strict=True))

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
    if not view.c_contiguous:  # this waits; models give others
        view = memoryview(mx.contiguous(array))  # type: ignore[arg-type]
    halves = np.frombuffer(view, np.uint16).reshape(array.shape)[row]
    floats = (halves.astype(np.uint32) << 16).view(np.float32)  # the upper halves of float32
    return floats
