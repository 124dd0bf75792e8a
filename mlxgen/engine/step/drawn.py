"""The draw of a batch, read from the device once, and what each request may see of it.

Invariant: what a view shows belongs to the draw that gave its token, whatever was submitted since.
``looked_for`` says what somebody looked at, so that the next draw reports it at once: what nobody
looks at is never computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ...errors import ModelError
from ...sampling import CANDIDATES, Draw, DrawRow, Sampler, Want
from ...tokens import Token
from ..kv import Fed, Later, Unread
from ..kv.here import HERE, Here


class Drawn:
    """A submitted draw from ``logits`` [batch, vocab], one row for each request.

    ``after``: how many passes had been submitted before it.
    """

    __slots__ = (
        "_draw",
        "_here",
        "_lazy",
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
        after: int = 0,
    ) -> None:
        self._sampler = sampler
        self.after = after
        self._here = here
        self.logits = logits
        self.requests = requests
        self.want = want
        self.redrawn: dict[int, Draw] = {}  # rows whose candidates fell short, sorted in full
        self._tokens: list[Token] | None = None
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
                        again = self._draw_again(row)
                        self.redrawn[row] = again
                        tokens[row] = self._here.read(again.token)[0]
            self._tokens = tokens
        return self._tokens

    def _draw_again(self, row: int) -> Draw:
        logits = self.logits[row : row + 1]
        request = self.requests[row]
        return self._sampler.sample(logits, [request], want=self.want, exact=True)

    def inexact(self, row: int) -> bool:
        """Whether a row's candidates fell short, so that its token may be another than the lazy."""
        return row in self.redrawn

    def part(self, row: int) -> tuple[Draw, int]:
        """The draw that gave a row's token, and the row's place in it."""
        again = self.redrawn.get(row)
        return (self._draw, row) if again is None else (again, 0)


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
    def _part(self) -> tuple[Draw, int]:
        self._drawn.tokens()
        return self._drawn.part(self._row)

    @cached_property
    def logits(self) -> npt.NDArray[np.float32]:
        return np.array(self._drawn.logits[self._row].astype(mx.float32))

    @cached_property
    def candidates(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        self._look(candidates=CANDIDATES)
        draw, row = self._part
        tokens, probs = draw.candidates, draw.candidate_probs
        if tokens is None or probs is None or self._drawn.want.candidates < CANDIDATES:
            best = np.argsort(-self.distribution, kind="stable")[:CANDIDATES].astype(np.int32)
            best = best[self.distribution[best] > 0]
            return best, self.distribution[best]
        return _known(tokens, probs, row, CANDIDATES)

    @cached_property
    def distribution(self) -> npt.NDArray[np.float32]:
        """The final distribution [vocab], computed anew: for what the draw does not report."""
        drawn, row = self._drawn, self._row
        whole = drawn._sampler.distribution(drawn.logits[row : row + 1], [drawn.requests[row]])
        return np.array(whole[0])

    def probability(self, token: Token) -> float:
        self._look(prob=True)
        draw, row = self._part
        if draw.prob is not None and self.token == token:
            return _number(draw.prob, row)
        if draw.candidates is not None:
            ids, probs = self.candidates
            found = np.flatnonzero(ids == token)
            if len(found):
                return float(probs[found[0]])
        return float(self.distribution[token])

    def best(self, count: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The first ``count`` candidates at most, for which the draw was asked beforehand."""
        draw, row = self._part
        assert draw.candidates is not None, "candidates are computed only if they are wanted"
        assert draw.candidate_probs is not None
        return _known(draw.candidates, draw.candidate_probs, row, count)

    def report(self, token: Token, top: int) -> tuple[float | None, list[tuple[Token, float]]]:
        """The log-probability of ``token``, and the ``top`` likeliest tokens with theirs."""
        draw, row = self._part
        assert draw.logprob is not None, "log-probabilities are computed only if they are wanted"
        if self.token == token:
            logprob = _number(draw.logprob, row)
        else:
            logits = self.logits.astype(np.float64)
            peak = logits.max()
            logprob = float(logits[token] - peak - np.log(np.exp(logits - peak).sum()))
        if not top or draw.top_tokens is None or draw.top_logprobs is None:
            return logprob, []
        tokens = np.array(draw.top_tokens[row, :top]).tolist()
        values = np.array(draw.top_logprobs[row, :top]).tolist()
        return logprob, list(zip(tokens, values, strict=True))

    def _look(self, *, prob: bool = False, candidates: int = 0) -> None:
        seen = self.looked_for or Want()
        self.looked_for = seen._replace(
            prob=prob or seen.prob, candidates=max(candidates, seen.candidates)
        )


def _known(
    tokens: mx.array, probs: mx.array, row: int, count: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The first of a row's candidates, without the padding if there are fewer."""
    ids = np.array(tokens)[row, :count]
    known = ids >= 0
    return ids[known], np.array(probs)[row, :count][known]


def _number(array: mx.array, row: int) -> float:
    value = array[row].item()
    assert isinstance(value, float)
    return value
