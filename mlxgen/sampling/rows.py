"""What goes into a draw and what comes out of it. Rows are the first axis of every array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from .settings import SamplingSettings


class Change(NamedTuple):
    """How the logits of some tokens change before a draw: a positive one is divided by its factor,
    a negative one multiplied by it; then ``less`` is subtracted. The ids [n] are distinct."""

    ids: npt.NDArray[np.integer[Any]]
    factors: npt.NDArray[np.floating[Any]]
    less: npt.NDArray[np.floating[Any]]


class DrawRow(NamedTuple):
    """One draw for one position of one sequence.

    ``seed``, ``position`` and ``attempt`` give its random numbers. ``words``: the allowed tokens as
    ceil(vocab / 32) packed words; ``None``: all. ``changes`` of the logits apply after the
    settings' biases. ``temperature`` replaces that of the settings in this draw. ``target``, for
    settings that aim: the probability near which tokens are preferred.
    """

    settings: SamplingSettings
    seed: int
    position: int
    attempt: int = 0
    words: npt.NDArray[np.int32] | None = None
    changes: Sequence[Change] = ()
    temperature: float | None = None
    target: float | None = None


class Want(NamedTuple):
    """What a draw reports besides its tokens. All of it takes time, so ask for little.

    ``prob``: the token's final probability. ``candidates``: how many of the most likely
    tokens of the final distribution (up to 128). ``logprob``: the token's log-probability
    in the model's own distribution, before anything was changed. ``top``: how many of the
    most likely tokens of that distribution (up to 128), with ``logprob`` or without.
    ``distribution``: the whole final distribution, for which rows have to be drawn with ``exact``.
    """

    prob: bool = False
    candidates: int = 0
    logprob: bool = False
    top: int = 0
    distribution: bool = False

    @classmethod
    def common(cls, wants: Sequence[Want]) -> Want:
        """What one draw has to report for rows that want different things."""
        first = wants[0]
        return first if wants.count(first) == len(wants) else cls(*map(max, *wants))


class Draw(NamedTuple):
    """The lazy arrays of one call; ``mx.async_eval(draw)`` submits them together.

    ``token`` [batch] int32: -1 if nothing could be drawn, because the logits hold NaN or
    +inf, or are -inf for every token; never an arbitrary token.
    ``exact`` [batch] bool: False if the tokens to draw from reach beyond the candidates,
    so that the row has to be drawn again with ``exact=True``; ``None``: all are exact,
    whatever the logits.

    If wanted, else ``None``:
    ``prob`` [batch]; ``candidates`` [batch, n] int32 and ``candidate_probs`` [batch, n],
    best first, filled up with -1 and 0.0 if fewer tokens have a probability; ``logprob``
    [batch]; ``top_tokens`` [batch, n] int32 and ``top_logprobs`` [batch, n], best first;
    ``distribution`` [batch, vocab], NaN for a row from which nothing can be drawn.

    ``share`` [batch], if some rows aim: the token's probability before adaptive-p's preference.

    A greedy row's probabilities are those at temperature 1 without truncation: at 0, the
    token's would always be 1.
    """

    token: mx.array
    exact: mx.array | None = None
    prob: mx.array | None = None
    candidates: mx.array | None = None
    candidate_probs: mx.array | None = None
    logprob: mx.array | None = None
    top_tokens: mx.array | None = None
    top_logprobs: mx.array | None = None
    distribution: mx.array | None = None
    share: mx.array | None = None
