"""Places in a sequence to which a cache that cannot be trimmed can be restored.

Owns which of them are kept. Must never know what a state consists of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

S = TypeVar("S")

EVERY = 64  # tokens between two checkpoints
KEPT = 3  # the oldest one and the two newest


class Checkpoints(Generic[S]):
    """States after increasing lengths; they are never written to, so copies share them."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[tuple[int, S]] = []

    def __iter__(self) -> Iterator[tuple[int, S]]:
        return iter(self._kept)

    def is_due(self, length: int, every: int = EVERY) -> bool:
        """Whether the last one is at least ``every`` tokens before ``length``, or there is none."""
        return not self._kept or length - self._kept[-1][0] >= every

    def add(self, length: int, state: S) -> None:
        self._kept.append((length, state))
        if len(self._kept) > KEPT:
            del self._kept[1]

    def back_to(self, length: int) -> tuple[int, S] | None:
        """The nearest one at or before ``length``, with its own; those after it are forgotten."""
        while self._kept and self._kept[-1][0] > length:
            self._kept.pop()
        return self._kept[-1] if self._kept else None

    def clear(self) -> None:
        self._kept.clear()

    def fork(self) -> Checkpoints[S]:
        twin: Checkpoints[S] = Checkpoints()
        twin._kept = list(self._kept)
        return twin
