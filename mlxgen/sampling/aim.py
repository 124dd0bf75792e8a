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

from ..forks import Steps

if TYPE_CHECKING:
    from ..tokens import Token

_WIDTH = 0.2  # of the preference, as a difference of probabilities
_STEEPNESS = 10.0


class Aim(Steps[float]):
    """The probabilities that the tokens of one sequence had when they were drawn.

    A part: ``advance`` one generated token, ``rewind`` to a number of them, ``fork``. A token that
    nobody drew, say because it was forced, leaves the average as it is.
    """

    __slots__ = ("_decay", "_share", "_target")

    def __init__(self, target: float, decay: float) -> None:
        self._target = target
        self._decay = decay
        self._share: float | None = None
        super().__init__(target)  # as if all tokens before had been on target

    @property
    def next(self) -> float:
        """The probability at which the next draw aims."""
        return min(max(2 * self._target - self._steps[-1], 0.0), 1.0)

    def drew(self, share: float | None) -> None:
        """Note the probability that the next token had before the preference, if it was drawn."""
        self._share = share

    def advance(self, token: Token) -> None:
        """Go on by a token."""
        share, self._share = self._share, None
        average = self._steps[-1]
        if share is not None:
            average = (1 - self._decay) * share + self._decay * average
        self._steps.append(average)

    def rewind(self, to: int) -> None:
        """Forget the tokens after the first ``to``."""
        super().rewind(to)
        self._share = None


def preferred(shares: mx.array, targets: mx.array) -> mx.array:
    """New probabilities [rows, n] of tokens, by the distance of their ``shares`` [rows, n] from the
    ``targets`` [rows, 1]; what had none gets none."""
    distance = mx.abs(shares - targets) / _WIDTH
    closeness = -_STEEPNESS * distance * distance / (1 + distance)
    return mx.softmax(mx.where(shares > 0, closeness, -mx.inf), axis=-1)
