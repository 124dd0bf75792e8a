"""A branch as other programs of the request see it: what it came to, and who waits for it.

Owns ``Task``. Must never know how the branch runs. Invariant: once ``over``, it stays as it is, and
nobody waits for it.
"""

from __future__ import annotations

from typing import Any

from ..engine import Wait
from ..errors import StateError


class Task:
    """The program of one branch: ``value`` is what it returned, ``problem`` why it did not."""

    __slots__ = ("_waits", "branch", "over", "problem", "value")

    def __init__(self, branch: tuple[int, ...]) -> None:
        self.branch = branch
        self.over = False
        self.value: Any = None
        self.problem: str | None = None
        self._waits: list[Wait] = []

    def __repr__(self) -> str:
        state = "going on" if not self.over else self.problem or f"returned {self.value!r}"
        return f"<Task of branch {self.branch}: {state}>"

    def result(self) -> Any:
        """What the program returned; StateError where it failed, ended early or goes on."""
        if not self.over or self.problem is not None:
            raise StateError(f"branch {self.branch} {self.problem or 'goes on'}")
        return self.value

    def finish(self, value: Any, problem: str | None) -> None:
        """Say what it came to."""
        if not self.over:
            self.over, self.value, self.problem = True, value, problem
            waits, self._waits = self._waits, []
            for wait in waits:
                wait.wake()

    def wait(self) -> Wait:
        """Something to wait for: its end."""
        wait = Wait(f"branch {self.branch}")
        self._waits.append(wait)
        return wait
