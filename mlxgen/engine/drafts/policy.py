"""How many tokens to draft, and whether that pays: two running means."""

from __future__ import annotations

import math

from ...forks import forked

MOST_ROWS = 8  # that run together, if anything is to be drafted: a pass of more is bound by tokens
HOPE = 1.0  # plain steps that a draft is thought to save before one was seen
LENGTH_WEIGHT, GAIN_WEIGHT = 1 / 2, 1 / 4  # of the newest in the means
REST, LONGEST_REST = 16, 256  # steps without a draft, after drafts did not pay
OFTEN, PAUSE = 128, 3  # drafts, after which a few steps without show what plain ones take by now


class Policy:
    """See the module. ``length``: how many tokens of a draft stood; one that stood whole counts
    twice, as more could have. ``gain``: how many plain steps a drafted one saved. ``rests``: for
    how many steps nothing is to be drafted."""

    __slots__ = ("_drafts", "_rest", "gain", "length", "rests")

    def __init__(self, length: float) -> None:
        self.length = length
        self.gain = HOPE
        self.rests, self._rest = 0, REST  # how long it still rests, and how long it would next time
        self._drafts = 0  # since the last rest

    def tokens(self, most: int) -> int:
        """How many of ``most`` tokens to draft; at least one."""
        return min(most, max(1, math.ceil(self.length)))

    def step(self) -> None:
        """Note a step without a draft."""
        self.rests = max(0, self.rests - 1)

    def saw(self, proposed: int, accepted: int, steps: float) -> None:
        """Note what became of a draft, or that there was none although it was waited for, and how
        many plain ``steps`` that took; 0: nobody knows.

        If drafts do not pay, they rest, and are tried again with one; if that does not pay either,
        they rest for twice as long.
        """
        if proposed:
            stood = 2 * accepted if accepted == proposed else accepted
            self.length += LENGTH_WEIGHT * (stood - self.length)
        if not steps:
            return
        gained = 1 + accepted - steps
        self.gain += GAIN_WEIGHT * (gained - self.gain)
        self._drafts += 1
        if self.gain < 0.0:
            self.rests, self._rest = self._rest, min(LONGEST_REST, 2 * self._rest)
            self.gain, self._drafts = 0.0, 0
        elif self._drafts == OFTEN:
            self.rests, self._drafts = PAUSE, 0
        elif gained > 0.0:
            self._rest = REST

    def fork(self) -> Policy:
        """An independent copy."""
        return forked(self)
