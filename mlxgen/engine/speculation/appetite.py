"""How many tokens to draft next.

Owns that number, which depends on what was accepted so far. Must never know models or clocks.
Invariant: if nothing is ever accepted, drafts become as rare as one token in 256.
"""

from __future__ import annotations

import copy

FIRST = 2  # tokens that are drafted at first
REST, LONGEST_REST = 16, 256  # tokens without a draft, after one of which nothing was accepted


class Appetite:
    """See the module. ``most`` is the maximum number of tokens to draft at a time.

    ``proposed`` and ``accepted`` are how many tokens it has seen drafted, and accepted.
    """

    __slots__ = ("_length", "_rest", "_until", "accepted", "most", "proposed")

    def __init__(self, most: int) -> None:
        self.most = most
        self.proposed = self.accepted = 0
        self._length = min(FIRST, most)
        self._rest = REST
        self._until = 0  # the position from which drafts are tried again after a rest

    def wanted(self, position: int) -> int:
        """How many tokens to draft after ``position``; 0 for none."""
        return self._length if position >= self._until else 0

    def saw(self, position: int, proposed: int, accepted: int) -> None:
        """Note how many of the ``proposed`` tokens were accepted, and the position reached."""
        if proposed == 0:
            return
        self.proposed += proposed
        self.accepted += accepted
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
