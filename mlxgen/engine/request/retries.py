"""What repeated draws of one sequence depend on, by position.

Invariant: what was decided for a position holds only as long as the text before it does not change.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from ...forks import forked
from ...tokens import Token
from ..chunk import Rejected

CHECKS = 10  # times that a finished text which does not fit is taken back
LOOPS = 3  # times that loops are taken back at one place
LOOPED = 256  # tokens that they may take back of a short text
DRAWS_FOR_BANS = 32  # draws that bans may take back for each token, and 32 times as many at first
_WARM, _WARMER, _WARMEST = 0.7, 0.1, 1.5  # temperatures of another try: ever warmer


class Decided(NamedTuple):
    """What was decided for a position: the draws that were ``rejected`` there, in order, what a ban
    or a loop excluded, and how often hooks have ``asked`` for another draw."""

    rejected: tuple[Rejected, ...] = ()
    banned: frozenset[Token] = frozenset()
    asked: int = 0


class Wish(NamedTuple):
    """What a hook wants of the next draw; ``unmet``: it excluded every token that could come."""

    exclude: frozenset[Token] = frozenset()
    temperature: float | None = None
    unmet: bool = False


NOTHING, ANY = Decided(), Wish()


@dataclass(slots=True)
class Retries:
    """See the module.

    - ``attempts``: how often a position was drawn before; each attempt draws with other random
      numbers. ``agreed``: the attempts that a consumer's rewinds have caused. Those at positions
      that the consumer has not seen must not change what it gets after a rewind.
    - ``spent``: how many draws bans have taken back.
    - ``checks``: how often a finished text was taken back, and from which position on: its draws
      vary then, also at a temperature at which they hardly would.
    - ``loops``: how often loops were taken back before the text had more tokens than the number
      that comes second. ``looped``: how many tokens that took back in all.
    """

    attempts: dict[int, int] = field(default_factory=dict)
    agreed: dict[int, int] = field(default_factory=dict)
    decided: dict[int, Decided] = field(default_factory=dict)
    wish: Wish = ANY
    spent: int = 0
    checks: tuple[int, int] = (0, 0)
    loops: tuple[int, int] = (0, 0)
    looped: int = 0

    def fork(self) -> Retries:
        """An independent copy."""
        return forked(self)

    def at(self, position: int) -> Decided:
        """What was decided for a position."""
        return self.decided.get(position, NOTHING)

    def excluded(self, position: int) -> frozenset[Token]:
        """The tokens that the next draw at ``position`` must not give."""
        decided, exclude = self.decided.get(position), self.wish.exclude
        return exclude if decided is None else decided.banned | exclude

    def reject(self, position: int, what: Rejected, *, ban: bool = False) -> None:
        """Note what was drawn at ``position`` and is not there; ``ban``: nor may it come again."""
        rejected, banned, asked = self.at(position)
        banned = banned | {what.token} if ban else banned
        self.decided[position] = Decided((*rejected, what), banned, asked)

    def ask(
        self, position: int, exclude: Collection[Token] = (), temperature: float | None = None
    ) -> None:
        """Note that a hook wants ``position`` drawn again, like this."""
        decided = self.at(position)
        self.decided[position] = decided._replace(asked=decided.asked + 1)
        self.wish = Wish(frozenset(exclude), temperature)

    def spend(self, position: int, drawn: int) -> bool:
        """Note that a ban goes back from ``drawn`` tokens to ``position``; false if it may not.

        The allowance grows with the length of the text. Without a limit, an expression that every
        text matches would be tried on one text after the other.
        """
        self.spent += drawn - position
        return self.spent <= DRAWS_FOR_BANS * (drawn + DRAWS_FOR_BANS)

    def take_back(self, position: int) -> bool:
        """Note that a finished text is taken back to ``position``; false if it may not be."""
        times, since = self.checks
        times = times if since == position else 0
        if times < CHECKS:
            self.checks = times + 1, position
        return times < CHECKS

    def loop(self, start: int, drawn: int) -> int:
        """Note a loop from ``start`` on in a text of ``drawn`` tokens; returns how often one was
        found there before."""
        times, until = self.loops
        times = times if start <= until else 0
        self.loops = times + 1, max(drawn, until)
        return times

    def may_loop(self, target: int, drawn: int) -> bool:
        """Note that a loop is taken back to ``target``; false if it may not be.

        Loops take back at most a quarter of the tokens that there are, and ``LOOPED`` more.
        """
        self.looped += drawn - target
        return self.loops[0] <= LOOPS and self.looped <= drawn // 4 + LOOPED

    def warmth(self, position: int, temperature: float) -> float | None:
        """The temperature of the draw at ``position`` after a text was taken back; None: the usual
        one, which is given."""
        times, since = self.checks
        if not times or position < since:
            return None
        return max(temperature, min(_WARM + times * _WARMER, _WARMEST))

    def rewind(self, to: int) -> None:
        """Forget what was decided for positions after ``to``: the text before them has changed."""
        for later in [position for position in self.decided if position > to]:
            del self.decided[later]

    def back(self, target: int, drawn: int) -> None:
        """Note that the positions from ``target`` up to, not including, ``drawn`` are redrawn."""
        self.rewind(target)
        if target < self.checks[1]:
            self.checks = 0, 0
        for position in range(target, drawn):
            self.attempts[position] = self.attempts.get(position, 0) + 1
        self.wish = ANY

    def back_for(self, target: int, seen: int) -> None:
        """``back``, for a consumer who has seen the first ``seen`` positions.

        What was decided for later positions is forgotten: the consumer must not be able to tell
        how far the draws had run ahead.
        """
        self.back(target, seen)
        self.rewind(seen - 1)
        if target in self.decided:
            self.decided[target] = self.decided[target]._replace(asked=0)
        self.spent, self.checks, self.loops, self.looped = 0, (0, 0), (0, 0), 0
        self.agreed.update((position, self.attempts[position]) for position in range(target, seen))
        for later in [position for position in self.attempts if position >= seen]:
            self.attempts[later] = self.agreed.get(later, 0)

    def begin_at(self, position: int) -> None:
        """Forget that the positions from this one on were drawn before."""
        for table in (self.attempts, self.agreed):
            for later in [each for each in table if each >= position]:
                del table[later]
