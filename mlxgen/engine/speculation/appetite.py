"""How many tokens to draft next.

Owns the answer, from what was accepted so far. Must never know models or clocks. Invariant:
where nothing is ever accepted, drafts become as rare as one token in 256.
"""

from __future__ import annotations

import copy

FIRST = 2  # tokens that are drafted at first
REST, LONGEST_REST = 16, 256  # tokens without a draft, after one that was all in vain


class Appetite:
    """See the module. ``most`` is the number of tokens that are ever drafted at a time."""

    __slots__ = ("_length", "_rest", "_until", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._length = min(FIRST, most)
        self._rest = REST
        self._until = 0  # the position from which on a resting draft is tried again

    def wanted(self, position: int) -> int:
        """How many tokens to draft behind ``position``; 0 for none."""
        return self._length if position >= self._until else 0

    def saw(self, position: int, proposed: int, accepted: int) -> None:
        """Say how many of the ``proposed`` tokens stood, and where the text stands now."""
        if proposed == 0:
            return
        if accepted == proposed:
            self._rest = REST
            self._length = min(self.most, 2 * self._length)
        elif 2 * accepted < proposed:
            self._length //= 2
            if self._length == 0:
                self._length = 1
                self._until = position + self._rest
                self._rest = min(LONGEST_REST, 2 * self._rest)
        if accepted:
            self._rest = REST

    def fork(self) -> Appetite:
        """An independent copy."""
        return copy.copy(self)
