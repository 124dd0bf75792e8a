"""Drafters that tests write down: right, wrong, absurd or broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlxgen.engine.request.leads import plain_draw
from mlxgen.engine.request.request import Request
from mlxgen.engine.speculation.drafter import Drafter
from mlxgen.engine.speculation.guess import Guess
from mlxgen.tokens import Token

Goes = Callable[[list[Token]], Token]  # what comes after these tokens


class Told(Drafter):
    """Says what ``goes`` gives after the history, and is as sure of it as ``sure`` says."""

    name = "told"
    most = 6

    def __init__(self, goes: Goes, sure: Callable[[int], float] = lambda length: 0.9) -> None:
        super().__init__()
        self._goes, self._sure = goes, sure

    def chances(self, request: Request, count: int) -> Sequence[float]:
        return [self._sure(len(request.history))] * count

    def propose(self, request: Request, count: int) -> Guess | None:
        tokens = list(request.history)
        for _ in range(count):
            tokens.append(self._goes(tokens))
        free = request.is_free(count + 1)
        draws = [plain_draw(request, request.position + i) for i in range(count + 1)]
        return Guess(tokens[len(request.history) :], draws if free else ())

    def fork(self) -> Told:
        return type(self)(self._goes, self._sure)


class ToldOther(Told):
    name = "told other"


class Absurd(Told):
    """Promises what it does not keep: its chances are none, and fewer or more tokens come."""

    name = "absurd"

    def chances(self, request: Request, count: int) -> Sequence[float]:
        kinds: list[Sequence[float]] = [[7.0] * count, [0.9] * 99, [0.9, -1.0, 0.9], [1.0] * count]
        return kinds[len(request.history) % 4]

    def propose(self, request: Request, count: int) -> Guess | None:
        kind = len(request.history) % 5
        guess = super().propose(request, (count, count, 2 * count, 1, 0)[kind])
        return None if kind == 0 else guess


class Broken(Told):
    """Raises where it is asked for ``fails``, from the ``after``-th time on."""

    name = "broken"

    def __init__(self, goes: Goes, fails: str, after: int = 3) -> None:
        super().__init__(goes)
        self._fails, self._left = fails, after
        own = getattr(self, fails)

        def failing(*given: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise RuntimeError(f"{fails} is broken")
            return own(*given)

        setattr(self, fails, failing)

    def fork(self) -> Broken:
        return Broken(self._goes, self._fails, self._left)
