"""Adaptive-p: which probability the next token should have.

As its author describes it (MrJackSpade, adaptive-p-docs; llama.cpp's pull request 17927). Tokens
near a probability are preferred to likelier and to less likely ones. So that the tokens that are
drawn have it on average, a draw aims as far beyond the target as the moving average of the latest
ones is on the other side of it.

Invariant: the average after each token is kept, so going back is forgetting the later ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from ..forks import forked

if TYPE_CHECKING:
    from ..tokens import Token

_WIDTH = 0.2  # of the preference, as a difference of probabilities
_STEEPNESS = 10.0


class Aim:
    """The probabilities that the tokens of one sequence had when they were drawn.

    A part: ``advance`` one generated token, ``rewind`` to a number of them, ``fork``. A token that
    nobody drew, say because it was forced, leaves the average as it is.
    """

    __slots__ = ("_averages", "_decay", "_share", "_target")

    def __init__(self, target: float, decay: float) -> None:
        self._target = target
        self._decay = decay
        self._averages = [target]  # as if all tokens before had been on target
        self._share: float | None = None

    def __len__(self) -> int:
        """How many tokens were generated."""
        return len(self._averages) - 1

    @property
    def next(self) -> float:
        """The probability at which the next draw aims."""
        return min(max(2 * self._target - self._averages[-1], 0.0), 1.0)

    def drew(self, share: float | None) -> None:
        """Note the probability that the next token had before the preference, if it was drawn."""
        self._share = share

    def advance(self, token: Token) -> None:
        """Go on by a token."""
        share, self._share = self._share, None
        average = self._averages[-1]
        if share is not None:
            average = (1 - self._decay) * share + self._decay * average
        self._averages.append(average)

    def rewind(self, to: int) -> None:
        """Forget the tokens after the first ``to``."""
        del self._averages[max(to, 0) + 1 :]
        self._share = None

    def fork(self) -> Aim:
        """An independent copy."""
        return forked(self)


def preferred(shares: mx.array, targets: mx.array) -> mx.array:
    """Weights [rows, n] of tokens by the distance of their probabilities [rows, n] from the
    ``targets`` [rows, 1]; what has no probability gets no weight."""
    distance = mx.abs(shares - targets) / _WIDTH
    closeness = -_STEEPNESS * distance * distance / (1 + distance)
    closeness = mx.where(shares > 0, closeness, -mx.inf)
    peak = mx.max(closeness, axis=-1, keepdims=True)
    return mx.where(shares > 0, mx.exp(closeness - peak), 0.0)
