"""The idea of the engine: a generation is a token history, and what was built from it.

**Parts** stand at the end of the history, on the host: the filters, the text and its stops and
bans, the token counts, the way to a valid end, what was delivered. A part advances by one token,
goes back to any earlier length, and can be copied. ``Request`` holds them and moves them together.

**The KV cache is a cache of the history.** It remembers which tokens it holds, and may hold others
than the history does: tokens that were taken back, a look-ahead, a draft that missed. Before a
pass, and nowhere else, it is aligned: it goes back to what both have in common, which
``low_since`` knows without looking at old tokens, and what is left of the history is pending. So a
rewind touches no cache, and a wrong guess needs no repair.

**A draw is not state.** Its random numbers are a function of seed, position and attempt. Whoever
goes back raises the attempt, and nothing has to be restored.

Everything else is use of these: a stop cuts the text that its tokens completed, a ban goes back to
the token where it begins, a hook declines a token or goes back, a draft is advanced along and
rewound, a forced run is appended and then pending like any other, a fork copies history and
parts, and a branch of a controller is a fork.

The laws, each of which is tested over random histories:

1. Advancing and rewinding to the old length equals never having advanced.
2. Rewinding equals building a part anew from the kept history; aligning equals an empty cache that
   ran it.
3. Of two forks neither sees what the other does (see ``forks``).
4. A rewind happens in all parts or in none.
5. The delivered text is the same however the tokens came: streamed or not, alone or in a batch,
   with or without kept prefixes and drafts, on one machine or on several.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Protocol

from ..tokens import Token


class History(list[Token]):
    """A list of tokens from which only ``cut`` may take tokens back; ``moment`` counts the cuts.

    Whoever derives something from the tokens remembers the moment, and asks later what still holds.
    """

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


class Part(Protocol):
    """State that is derived from a history; it advances in a way of its own."""

    def rewind(self, to: int) -> None:
        """Go back to the first ``to`` tokens; does nothing at that length or before it."""


def rewind_all(parts: Sequence[Part | None], to: int) -> None:
    """Every part goes back, or none does: only the rewind of the first one may fail."""
    for part in parts:
        if part is not None:
            part.rewind(to)
