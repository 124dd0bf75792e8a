"""How a controller wants the next token drawn, and what it makes of it.

Owns ``Steering`` and the two moves that a controller has beside it: appending and taking
back. Must never ask a controller or check its wishes (``branches`` does). Invariant: what a
sampled token is replaced by is known before any part of the sequence has seen the token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...filters import Int32Words
from ...sampling import DrawView
from ...tokens import Token
from .verdict import Verdict

if TYPE_CHECKING:
    from .row import Row


@dataclass(frozen=True, slots=True)
class Replacement:
    """A checked ``Splice``. ``when`` is ``None``: any token."""

    when: frozenset[Token] | None
    backtrack: int
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Steering:
    """How one position is drawn, and what follows from the token.

    ``words``: what may be drawn, ``None``: anything. ``runs``: by their first token, runs that
    are appended whole. ``splices``: the first that matches is applied behind that.
    """

    words: Int32Words | None = None
    temperature: float | None = None
    runs: Mapping[Token, tuple[Token, ...]] = field(default_factory=dict)
    splices: tuple[Replacement, ...] = ()

    @property
    def expects_run(self) -> bool:
        """Whether more than the sampled token may have to go through the model."""
        return bool(self.runs) or any(splice.tokens for splice in self.splices)

    def outcome(self, token: Token) -> tuple[int, tuple[Token, ...]]:
        """What a sampled token comes to: tokens to take back before it, and to append then."""
        run = self.runs.get(token) or (token,)
        for splice in self.splices:
            if splice.when is None or token in splice.when:
                back = splice.backtrack
                return max(0, back - len(run)), run[: max(0, len(run) - back)] + splice.tokens
        return 0, run


def follow(row: Row, steering: Steering, token: Token, view: DrawView) -> Verdict:
    """Take in what a sampled token comes to; the steering is used up by it."""
    row.steering = None
    back, run = steering.outcome(token)
    if not back and run[:1] == (token,):
        verdict = row.settle(token, view)
        return _push(row, run[1:]) if verdict is Verdict.NEXT else verdict
    row.take_back(back, drawn=1)
    row.tally.redraws += 1
    return _push(row, run) if run else Verdict.AGAIN


def append(row: Row, tokens: Sequence[Token]) -> Verdict:
    """Put a run behind the history, and what filters force behind that.

    Raises ``FilterError`` for a token that the filters do not allow; the ones before it stand.
    """
    if row.finish_reason is not None:
        return Verdict.END
    verdict = _push(row, tokens)
    return row.fast_forward() if verdict is Verdict.NEXT else verdict


def _push(row: Row, tokens: Sequence[Token]) -> Verdict:
    for token in tokens:
        verdict = row.push(token)
        if verdict is not Verdict.NEXT:
            return verdict
    return Verdict.NEXT
