"""The things that a program can await, as answers to its controller's calls.

``ask`` says how the branch continues, or gives ``Done`` with the result; between two calls
of it, ``told`` is given what the answer led to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from ..engine import Branch, Splice, Wait
from ..tokens import Token
from .token_set import TokenSet


@dataclass(frozen=True, slots=True)
class Done:
    """What an await evaluates to, or raises."""

    value: Any
    error: Exception | None = None


Answer: TypeAlias = list[Branch] | Wait | Done


class Step(Protocol):
    """Something awaited, while it is carried out."""

    def ask(self) -> Answer: ...

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None: ...


@dataclass(slots=True)
class Put:
    """Takes back the newest tokens and appends a run, if there is anything to do."""

    back: int
    tokens: Sequence[Token]

    def ask(self) -> Answer:
        todo = self.back or self.tokens
        return [Branch(self.back, None, [self.tokens])] if todo else Done(None)

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        self.back, self.tokens = 0, ()


class Sample:
    """Samples one token: its id, or ``None`` for an end token, which is not appended."""

    __slots__ = ("_branch", "_result")

    def __init__(self, allowed: TokenSet, ends: Sequence[Token], temperature: float | None) -> None:
        splices = [Splice(ends, backtrack=1)] if ends else []
        self._branch = Branch(sample_mask=allowed.words, splices=splices, temperature=temperature)
        self._result: Done | None = None

    def ask(self) -> Answer:
        return self._result or [self._branch]

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        self._result = Done(tokens[0] if tokens else None)


@dataclass(slots=True)
class Split:
    """Forks into ``count`` branches; ``result`` says what the await gives in each.

    ``index`` is the branch's own, after the fork.
    """

    count: int
    result: Callable[[int], Any]
    index: int | None = None

    def at(self, index: int) -> Split:
        """The same step as branch ``index`` sees it: after the fork."""
        return replace(self, index=index)

    def ask(self) -> Answer:
        index = 0 if self.count == 1 else self.index
        return [Branch(ff_tokens=[[]])] * self.count if index is None else Done(self.result(index))

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        self.index = branch_idx


@dataclass(slots=True)
class Until:
    """Waits until ``look`` returns something; the end of ``wait()`` makes it look again."""

    look: Callable[[], Done | None]
    wait: Callable[[], Wait]

    def ask(self) -> Answer:
        return self.look() or self.wait()

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        pass
