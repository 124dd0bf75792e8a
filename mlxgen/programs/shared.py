"""What the branches of a request share: variables, and each other's results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..engine import Wait
from ..errors import OptionError, StateError


class Task:
    """The program of one branch: ``value`` is what it returned, ``problem`` why it did not.

    Once it is ``over``, it never changes; ``end`` waits for that.
    """

    __slots__ = ("branch", "end", "problem", "value")

    def __init__(self, branch: tuple[int, ...]) -> None:
        self.branch = branch
        self.value: Any = None
        self.problem: str | None = None
        self.end = Wait(f"branch {branch}")

    def __repr__(self) -> str:
        state = "running" if not self.over else self.problem or f"returned {self.value!r}"
        return f"<Task of branch {self.branch}: {state}>"

    @property
    def over(self) -> bool:
        """Whether the program has returned, failed or been ended."""
        return self.end.woken

    def result(self) -> Any:
        """What the program returned. StateError if it failed, ended early or still runs."""
        if not self.over or self.problem is not None:
            raise StateError(f"branch {self.branch} {self.problem or 'is still running'}")
        return self.value

    def finish(self, value: Any, problem: str | None) -> None:
        """Sets the result and wakes those who wait for it."""
        if not self.over:
            self.value, self.problem = value, problem
            self.end.wake()


@dataclass(frozen=True, slots=True)
class Forked:
    """The index of this branch in a ``fork(n)``, and the tasks of all branches in order."""

    index: int
    tasks: tuple[Task, ...]


class Variables(Mapping[str, str]):
    """Named texts: a mapping to read, with ``set``, ``append`` and ``compare_and_swap``.

    A change wakes everyone who waits for that name, once.
    """

    __slots__ = ("_changes", "_texts")

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._texts: dict[str, str] = {}
        self._changes: dict[str, Wait] = {}  # the next one of each name, if anyone waits for it
        for name, text in (given or {}).items():
            self.set(name, text)

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __repr__(self) -> str:
        return f"Variables({self._texts!r})"

    def set(self, name: str, text: str) -> None:
        """Gives a name a text, whatever it had."""
        self._texts[_checked("name", name)] = _checked("text", text)
        if name in self._changes:
            self._changes.pop(name).wake()

    def append(self, name: str, text: str) -> str:
        """Appends to the text of a name, or starts one; returns the whole text."""
        self.set(name, self._texts.get(name, "") + _checked("text", text))
        return self._texts[name]

    def compare_and_swap(self, name: str, expected: str | None, text: str) -> bool:
        """Sets a name if it has the expected text (``None``: none yet); returns True if so."""
        if self._texts.get(name) != expected:
            return False
        self.set(name, text)
        return True

    def wait(self, name: str) -> Wait:
        """A wait for the next change of a name."""
        return self._changes.setdefault(name, Wait(f"variable {name!r}"))


def _checked(what: str, value: str) -> str:
    if not isinstance(value, str):
        raise OptionError(what, f"expected a string, got {value!r}; variables hold text")
    return value
