"""The tokens of one sequence, and how far back they have changed since any moment.

Whoever derives something from the tokens remembers the ``moment``, and asks later what still holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from ..tokens import Token


class History(list[Token]):
    """A list of tokens from which only ``cut`` may take tokens back; ``moment`` counts the cuts."""

    __slots__ = ("_cuts", "moment")

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        super().__init__(tokens)
        self.moment = 0
        # (moment, tokens left) of the cuts; both rise, as a deeper cut replaces earlier ones.
        self._cuts: list[tuple[int, int]] = []

    def cut(self, to: int) -> None:
        """Keep the first ``to`` tokens."""
        if to >= len(self):
            return
        del self[to:]
        while self._cuts and self._cuts[-1][1] >= to:
            self._cuts.pop()
        self.moment += 1
        self._cuts.append((self.moment, to))

    def low_since(self, moment: int) -> int:
        """How many leading tokens have not changed since ``moment``: the least any cut left."""
        if moment == self.moment:
            return len(self)
        return self._cuts[bisect_left(self._cuts, (moment + 1,))][1]

    def changed_since(self, moment: int, length: int) -> tuple[int, list[Token]]:
        """How many of the ``length`` tokens at ``moment`` were cut, and the tokens now there."""
        low = min(length, self.low_since(moment))
        return length - low, self[low:]

    def fork(self) -> History:
        """An independent copy, with the same moments."""
        twin = History(self)
        twin.moment, twin._cuts = self.moment, list(self._cuts)
        return twin
