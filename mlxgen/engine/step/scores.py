"""What the model thinks of a prompt's own tokens.

Invariant: ``done`` tokens from the first on are scored, and what an interrupt or a failure cut off
is not among them. The logits of a prompt are large: a pass that is scored runs ``PIECE`` tokens at
most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from ...tokens import Token
from ..chunk import Alternative, PromptScore

PIECE = 256


class PromptScores:
    """Scores of ``tokens``, each with its ``top`` likeliest alternatives."""

    __slots__ = ("_scores", "_tokens", "_top")

    def __init__(self, tokens: Sequence[Token], top: int) -> None:
        self._tokens = tuple(tokens)
        self._top = top
        self._scores: list[PromptScore] = [PromptScore(self._tokens[0])]  # nothing comes before it

    @property
    def done(self) -> int:
        """Tokens that are scored."""
        return len(self._scores)

    @property
    def is_complete(self) -> bool:
        """Whether all of them are."""
        return self.done == len(self._tokens)

    def read(self) -> tuple[PromptScore, ...]:
        """All scores, when they are complete."""
        assert self.is_complete
        return tuple(self._scores)

    def add(self, start: int, logits: mx.array) -> None:
        """Take in the logits [n, vocab] after the tokens from ``start`` on; evaluates them."""
        first, end = self.done, min(len(self._tokens), start + logits.shape[0] + 1)
        assert start < first, "a token before was not scored"
        if end <= first:
            return
        raw = logits[first - start - 1 : end - start - 1].astype(mx.float32)
        own = mx.take_along_axis(raw, mx.array(self._tokens[first:end])[:, None], axis=-1)
        mass = mx.logsumexp(raw, axis=-1, keepdims=True)
        ranks = (raw > own).sum(axis=-1) + 1
        logprobs = (own - mass)[:, 0]
        found: list[list[Alternative]] = [[] for _ in range(first, end)]
        if self._top:
            count = min(self._top, raw.shape[-1])
            ids = mx.argpartition(-raw, count - 1, axis=-1)[:, :count]
            values = mx.take_along_axis(raw, ids, axis=-1) - mass
            order = mx.argsort(-values, axis=-1)
            ids = mx.take_along_axis(ids, order, axis=-1)
            values = mx.take_along_axis(values, order, axis=-1)
            mx.eval(logprobs, ranks, ids, values)
            rows = zip(_lists(ids), _lists(values), strict=True)
            found = [[Alternative(*pair) for pair in zip(*row, strict=True)] for row in rows]
        mx.eval(logprobs, ranks)
        self._scores += [
            PromptScore(token, logprob, rank, tuple(top))
            for token, logprob, rank, top in zip(
                self._tokens[first:end], _lists(logprobs), _lists(ranks), found, strict=True
            )
        ]


def _lists(array: mx.array) -> list[Any]:
    return list(np.array(array).tolist())
