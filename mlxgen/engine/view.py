"""One row of a draw, read from the device when somebody looks.

Owns the bridge between lazy arrays and what rows and hooks ask for. Must never decide
anything. Invariant: what it shows belongs to the draw that gave ``token``, whatever was
submitted since. ``looked_for`` says what somebody looked at, so that the next draw reports
it at once: what nobody looks at is never computed.
"""

from __future__ import annotations

from functools import cached_property

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from ..sampling import CANDIDATES, Draw, DrawRow, Sampler, Want, final_distribution
from ..tokens import Token


class DrawnView:
    """A submitted draw for one row; ``logits`` [1, vocab] are those drawn from."""

    def __init__(
        self,
        sampler: Sampler,
        logits: mx.array,
        request: DrawRow,
        want: Want,
        *,
        exact: bool = False,
    ) -> None:
        self._sampler = sampler
        self._logits = logits
        self._request = request
        self._want = want
        self.looked_for = want
        self.was_exact = True
        self._draw: Draw = sampler.sample(logits, [request], want=want, exact=exact)
        mx.async_eval(self._draw)

    @property
    def lazy_token(self) -> mx.array:
        """The token [1] as an array, to go on from before it is known."""
        return self._draw.token

    @cached_property
    def token(self) -> Token:
        """The token; this waits for the device.

        Raises ``ModelError`` where the logits allow no draw. Where the candidates did not
        hold the whole nucleus it draws again, and then ``lazy_token`` is another array.
        """
        exact = self._draw.exact
        token = _integer(self._draw.token)
        if exact is not None and not exact.item():
            self.was_exact = False
            self._draw = self._sampler.sample(
                self._logits, [self._request], want=self._want, exact=True
            )
            token = _integer(self._draw.token)
        if token < 0:
            raise ModelError(
                f"the logits at position {self._request.position} hold NaN or infinity, or allow "
                "no token; check the weights and their precision"
            )
        return token

    @cached_property
    def logits(self) -> npt.NDArray[np.float32]:
        row = self._logits[0]
        return np.array(row.astype(mx.float32))

    @cached_property
    def candidates(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        self.looked_for = self.looked_for._replace(candidates=CANDIDATES)
        tokens, probs = self._draw.candidates, self._draw.candidate_probs
        if tokens is None or probs is None:
            best = np.argsort(-self.distribution, kind="stable")[:CANDIDATES].astype(np.int32)
            best = best[self.distribution[best] > 0]
            return best, self.distribution[best]
        ids = np.array(tokens[0])
        known = ids >= 0
        return ids[known], np.array(probs[0])[known]

    @cached_property
    def distribution(self) -> npt.NDArray[np.float32]:
        """The final distribution [vocab], computed anew: for what the draw does not report."""
        return np.array(final_distribution(self._logits, [self._request])[0])

    def probability(self, token: Token) -> float:
        self.looked_for = self.looked_for._replace(prob=True)
        if self._draw.prob is not None and self.token == token:
            return _number(self._draw.prob)
        if self._draw.candidates is not None:
            ids, probs = self.candidates
            found = np.flatnonzero(ids == token)
            if len(found):
                return float(probs[found[0]])
        return float(self.distribution[token])

    def report(self, token: Token) -> tuple[float | None, list[tuple[Token, float]]]:
        draw = self._draw
        assert draw.logprob is not None, "log-probabilities are drawn for where they are wanted"
        if self.token == token:
            logprob = _number(draw.logprob)
        else:
            row = self.logits.astype(np.float64)
            peak = row.max()
            logprob = float(row[token] - peak - np.log(np.exp(row - peak).sum()))
        if draw.top_tokens is None or draw.top_logprobs is None:
            return logprob, []
        tokens = np.array(draw.top_tokens[0]).tolist()
        return logprob, list(zip(tokens, np.array(draw.top_logprobs[0]).tolist(), strict=True))


def _integer(array: mx.array) -> int:
    value = array.item()
    assert isinstance(value, int)
    return value


def _number(array: mx.array) -> float:
    value = array.item()
    assert isinstance(value, float)
    return value
