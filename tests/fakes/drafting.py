"""Drafters that tests write down: right, wrong, absurd or broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlxgen.engine.drafts.drafts import Drafter, Guess, Policy
from mlxgen.engine.request.leads import free_draws
from mlxgen.engine.request.request import Request
from mlxgen.tokens import Token

Goes = Callable[[list[Token]], Token]  # what comes after these tokens


class Told(Drafter):
    """Says what ``goes`` gives after the history, if ``has`` says that it has something there."""

    name = "told"
    most = 6

    def __init__(self, goes: Goes, has: Callable[[int], bool] = lambda length: True) -> None:
        super().__init__(Policy(6))
        self._goes, self._has = goes, has

    def expects(self, request: Request) -> bool:
        return self._has(len(request.history) + 1)

    def propose(self, request: Request, count: int) -> Guess | None:
        tokens = list(request.history)
        if not self._has(len(tokens)):
            return None
        for _ in range(count):
            tokens.append(self._goes(tokens))
        return Guess(tokens[len(request.history) :], free_draws(request, count + 1))

    def fork(self) -> Told:
        return type(self)(self._goes, self._has)


class ToldOther(Told):
    name = "told other"


class Absurd(Told):
    """Does not keep what it promises: it has something or nothing, and few or many tokens."""

    name = "absurd"

    def expects(self, request: Request) -> bool:
        return len(request.history) % 4 < 3

    def propose(self, request: Request, count: int) -> Guess | None:
        kind = len(request.history) % 4
        return super().propose(request, min(count, kind)) if kind else None


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
