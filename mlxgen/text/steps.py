"""What is kept after each step of a growing text, so that steps can be taken back."""

from __future__ import annotations

from typing import ClassVar, Generic, Self, TypeVar

from ..errors import RewindError
from ..forks import forked

S = TypeVar("S")


class Steps(Generic[S]):
    """The base of parts whose whole state is a list: what holds at first, and after each step.

    ``TABLES`` are the fields that never change, which copies share.
    """

    __slots__ = ("_steps",)

    TABLES: ClassVar[tuple[str, ...]] = ()

    def __init__(self, first: S) -> None:
        self._steps = [first]

    def __len__(self) -> int:
        """Steps so far."""
        return len(self._steps) - 1

    def rewind(self, to: int) -> None:
        """Goes back to ``to`` steps; does nothing if there are no more than that."""
        if to < 0:
            raise RewindError(f"cannot rewind to {to} steps", possible=len(self))
        del self._steps[to + 1 :]

    def fork(self) -> Self:
        """An independent copy."""
        return forked(self, shared=self.TABLES)
