"""The idea of the engine: a generation is a token history, and the state built from it.

**Parts** stand at the end of the history, on the host: the filters, the text with its stops and
bans, the token counts, the way to a valid end, the delivered chunks. A part advances by one token,
goes back to any earlier length, and can be copied. ``Request`` moves them together.

**The KV cache is a cache of the history.** It remembers which tokens it holds, and may hold tokens
that the history does not: tokens that were taken back, a look-ahead, a draft that missed. Before a
pass, and nowhere else, it is aligned: it goes back to the longest common prefix, which
``low_since`` finds without looking at old tokens, and the rest of the history is pending. So a
rewind touches no cache, and a wrong guess needs no repair.

**A draw is not state.** Its random numbers are a function of seed, position and attempt. A redraw
raises the attempt, so nothing has to be restored.

Everything else is built from these: a stop cuts the text that its tokens completed, a ban goes back
to the token where its match begins, a hook declines a token or goes back, a draft is advanced along
and rewound, a forced run is appended and then pending like any other, a fork copies history and
parts, and a branch of a controller is a fork.

The laws, each tested over random histories:

1. Advancing, then rewinding to the old length, equals never having advanced.
2. Rewinding equals building a part anew from the kept history; aligning equals an empty cache that
   ran it.
3. Neither of two forks sees what the other does (see ``forks``).
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

    State derived from the tokens records the moment, and can ask later how much of it still holds.
    """

    __slots__ = ("_cuts", "moment")

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        super().__init__(tokens)
        self.moment = 0
        # (moment, tokens left) of each cut; both increase, as a deeper cut replaces earlier ones.
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
        """How many leading tokens have not changed since ``moment``: the fewest a cut has left."""
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
    """State derived from a history. Each part advances in its own way."""

    def rewind(self, to: int) -> None:
        """Go back to the first ``to`` tokens; does nothing at that length or before it."""


def rewind_all(parts: Sequence[Part | None], to: int) -> None:
    """Rewind every part, or none: only the first part's rewind may fail."""
    for part in parts:
        if part is not None:
            part.rewind(to)
