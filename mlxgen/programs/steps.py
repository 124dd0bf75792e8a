"""The things that a program can await, as answers to its controller's calls.

``ask`` says how the branch continues, or gives ``Done`` with the result; between two calls
of it, ``told`` is given what the answer led to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


class Put:
    """Takes back the newest tokens and appends a run, if there is anything to do."""

    __slots__ = ("_back", "_done", "_tokens")

    def __init__(self, back: int, tokens: Sequence[Token]) -> None:
        self._back = back
        self._tokens = tokens
        self._done = not back and not tokens

    def ask(self) -> Answer:
        return Done(None) if self._done else [Branch(self._back, None, [self._tokens])]

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        self._done = True


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


class Split:
    """Forks into ``count`` branches; ``result`` says what the await gives in each."""

    __slots__ = ("_count", "_index", "_result")

    def __init__(self, count: int, result: Callable[[int], Any]) -> None:
        self._count = count
        self._result = result
        self._index: int | None = 0 if count == 1 else None

    def at(self, index: int) -> Split:
        """The same step as branch ``index`` sees it: after the fork."""
        twin = Split(self._count, self._result)
        twin._index = index
        return twin

    def ask(self) -> Answer:
        if self._index is not None:
            return Done(self._result(self._index))
        return [Branch(ff_tokens=[[]])] * self._count

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        self._index = branch_idx


class Until:
    """Waits until ``look`` returns something; the end of ``wait()`` makes it look again."""

    __slots__ = ("_look", "_wait")

    def __init__(self, look: Callable[[], Done | None], wait: Callable[[], Wait]) -> None:
        self._look = look
        self._wait = wait

    def ask(self) -> Answer:
        return self._look() or self._wait()

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        pass
