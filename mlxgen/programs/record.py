"""What a program has awaited so far, to be replayed by a copy of it.

Invariant: a program that is replayed asks for the same things in the same order; if it does
not, that is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ..errors import StateError
from ..tokens import Token

T = TypeVar("T")


class Entry(NamedTuple):
    """One thing that a program asked for, what it got, and what that did to the tokens."""

    what: str
    result: Any
    back: int = 0
    appended: Sequence[Token] = ()


class Record:
    """The entries of a program; ``replaying`` while some of them are still to come."""

    __slots__ = ("_entries", "_place")

    def __init__(self, entries: list[Entry] | None = None) -> None:
        self._entries = entries or []
        self._place = 0

    @property
    def replaying(self) -> bool:
        return self._place < len(self._entries)

    def add(self, entry: Entry) -> None:
        """Adds what has just happened."""
        assert not self.replaying
        self._entries.append(entry)
        self._place += 1

    def replayed(self, what: str) -> Entry:
        """The next entry, which must be one of ``what``."""
        entry = self._entries[self._place]
        if entry.what != what:
            raise self.diverged(f"asked for {what}")
        self._place += 1
        return entry

    def diverged(self, did: str) -> StateError:
        """The error of a program that does something other than before."""
        return StateError(
            f"a program diverged when it was replayed for a fork: it {did}, but had asked for "
            f"{self._entries[self._place].what} before; make it depend only on what its guide "
            "gives it"
        )

    def once(self, what: str, act: Callable[[], T]) -> T:
        """The result of ``act``, which is not called again in a replay."""
        if self.replaying:
            result: T = self.replayed(what).result
            return result
        result = act()
        self.add(Entry(what, result))
        return result

    def fork(self) -> Record:
        """The same entries, to be replayed from the first."""
        return Record(list(self._entries))
