"""What the model thinks of a prompt's own tokens.

Invariant: ``done`` tokens from the first on are scored, as far as the device gets with what was
submitted, and what an interrupt cut off is not among them. The logits of a prompt are large: a pass
that is scored runs ``PIECE`` tokens at most, and only what is reported of them is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import mlx.core as mx

from ...tokens import Token
from ..chunk import Alternative, PromptScore

PIECE = 256


class _Part(NamedTuple):
    """Scores of the tokens up to ``end``, on the device: log-probabilities [n] and ranks [n], and
    the likeliest alternatives [n, top] with theirs, if any are wanted."""

    end: int
    arrays: list[mx.array]

    def rows(self) -> Iterator[tuple[float, int, tuple[Alternative, ...]]]:
        """What is reported of each; this waits for the device."""
        logprobs, ranks, *top = [cast(list[Any], array.tolist()) for array in self.arrays]
        if not top:
            top = [[[]] * len(ranks)] * 2
        for logprob, rank, *alternatives in zip(logprobs, ranks, *top, strict=True):
            pairs = zip(*alternatives, strict=True)
            yield logprob, rank, tuple([Alternative(*pair) for pair in pairs])


class PromptScores:
    """Scores of ``tokens``, each with its ``top`` likeliest alternatives."""

    __slots__ = ("_parts", "_tokens", "_top")

    def __init__(self, tokens: Sequence[Token], top: int) -> None:
        self._tokens = tuple(tokens)
        self._top = top
        self._parts: list[_Part] = []

    @property
    def done(self) -> int:
        """Tokens that are scored; before the first one nothing comes."""
        return self._parts[-1].end if self._parts else 1

    @property
    def is_complete(self) -> bool:
        """Whether all of them are."""
        return self.done == len(self._tokens)

    def read(self) -> tuple[PromptScore, ...]:
        """All scores, when they are complete."""
        assert self.is_complete
        rows = [row for part in self._parts for row in part.rows()]
        scored = zip(self._tokens[1:], rows, strict=True)
        return (PromptScore(self._tokens[0]), *[PromptScore(token, *row) for token, row in scored])

    def add(self, start: int, logits: mx.array) -> None:
        """Take in the logits [n, vocab] after the tokens from ``start`` on; submits them."""
        first, end = self.done, min(len(self._tokens), start + logits.shape[0] + 1)
        assert start < first, "a token before was not scored"
        if end <= first:
            return
        raw = logits[first - start - 1 : end - start - 1].astype(mx.float32)
        own = mx.take_along_axis(raw, mx.array(self._tokens[first:end])[:, None], axis=-1)
        mass = mx.logsumexp(raw, axis=-1, keepdims=True)
        arrays = [(own - mass)[:, 0], (raw > own).sum(axis=-1) + 1]
        if self._top:
            count = min(self._top, raw.shape[-1])
            ids = mx.argpartition(-raw, count - 1, axis=-1)[:, :count]
            values = mx.take_along_axis(raw, ids, axis=-1) - mass
            order = mx.argsort(-values, axis=-1)
            arrays += [mx.take_along_axis(array, order, axis=-1) for array in (ids, values)]
        mx.async_eval(arrays)
        self._parts.append(_Part(end, arrays))

    def restart(self) -> None:
        """Drop what was submitted: the whole prompt is to be run again."""
        self._parts.clear()
