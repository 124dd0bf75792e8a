"""A branch as the other programs of the request see it: its result, and who waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..engine import Wait
from ..errors import StateError


class Task:
    """The program of one branch: ``value`` is what it returned, ``problem`` why it did not.

    Once it is ``over``, it never changes. ``end`` is to wait for that.
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
    """The index of this branch of a ``fork(n)``, and the tasks of all of them in order."""

    index: int
    tasks: tuple[Task, ...]
