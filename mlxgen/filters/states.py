"""A running filter for engines whose states are values: a rewind only drops the latest ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import FilterError
from ..forks import forked
from ..tokens import Token
from .protocol import Int32Words


@dataclass(slots=True, eq=False)
class StatesFilter:
    """``states`` are the first one and that after each token fed; nothing changes a state.

    ``row`` gives the tokens that may follow a state, and ``after`` the next state, or a FilterError
    for a token that is not allowed.
    """

    states: list[Any]
    row: Callable[[Any], Int32Words]
    after: Callable[[Any, Token], Any]
    ends: Callable[[Any], bool]

    def fill(self, row: Int32Words) -> bool:
        row[:] = self.row(self.states[-1])
        return True

    def advance(self, token: Token) -> None:
        self.states.append(self.after(self.states[-1], token))

    def can_end(self) -> bool:
        return bool(self.ends(self.states[-1]))

    def reset(self) -> None:
        self.rewind(0)

    def rewind(self, to: int) -> None:
        del self.states[to + 1 :]

    def fork(self) -> StatesFilter:
        return forked(self, shared=("row", "after", "ends"))

    def forced(self) -> Sequence[Token]:
        return ()

    def validate(self, tokens: Sequence[Token]) -> int:
        state = self.states[-1]
        for count, token in enumerate(tokens):
            try:
                state = self.after(state, token)
            except FilterError:
                return count
        return len(tokens)
