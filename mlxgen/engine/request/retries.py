"""What repeated draws of one sequence depend on, by position.

Invariant: what was decided for a position holds only as long as the text before it does not change.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ...forks import forked
from ...tokens import Token
from ..chunk import Rejected

CHECKS = 10  # times that a finished text which does not fit is taken back
LOOPS = 3  # times that loops are taken back at one place
LOOPED = 256  # tokens that they may take back of a short text
DRAWS_FOR_BANS = 32  # draws that bans may take back for each token, and 32 times as many at first
_WARM, _WARMER, _WARMEST = 0.7, 0.1, 1.5  # temperatures of another try: ever warmer


@dataclass(slots=True)
class Retries:
    """See the module.

    - ``attempts``: how often a position was drawn before; each attempt draws with other random
      numbers.
    - ``agreed``: the attempts that the consumer's rewinds have caused. Others, at positions that
      the consumer has not seen, are not to show in what a rewind gives.
    - ``asked``: how often hooks have asked for another draw at a position.
    - ``banned``: the tokens that bans have excluded there.
    - ``rejected``: what was drawn there and is not, in order.
    - ``spent``: how many draws bans have taken back.
    - ``checks``: how often a finished text was taken back, and from which position on: its draws
      vary then, also at a temperature at which they hardly would.
    - ``loops``: how often loops were taken back before the text had more tokens than the number
      that comes second. ``looped``: how many tokens that took back in all.
    - ``exclude``, ``temperature``: what a hook wants of the next draw. ``unmet``: it excluded
      every token that could be drawn.
    """

    attempts: dict[int, int] = field(default_factory=dict)
    agreed: dict[int, int] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    banned: dict[int, frozenset[Token]] = field(default_factory=dict)
    rejected: dict[int, tuple[Rejected, ...]] = field(default_factory=dict)
    spent: int = 0
    checks: tuple[int, int] = (0, 0)
    loops: tuple[int, int] = (0, 0)
    looped: int = 0
    exclude: frozenset[Token] = frozenset()
    temperature: float | None = None
    unmet: bool = False

    def fork(self) -> Retries:
        """An independent copy."""
        return forked(self)

    def excluded(self, position: int) -> frozenset[Token]:
        """The tokens that the next draw at ``position`` must not give."""
        banned = self.banned.get(position)
        return self.exclude if banned is None else banned | self.exclude

    @property
    def differs(self) -> bool:
        """Whether a hook wants the next draw to be unlike those after it."""
        return bool(self.exclude) or self.temperature is not None

    def accepted(self) -> None:
        """Note that the next draw was accepted: what a hook wanted of it is done."""
        if self.exclude or self.temperature is not None or self.unmet:
            self._forget_wish()

    def ask(
        self, position: int, exclude: Collection[Token] = (), temperature: float | None = None
    ) -> None:
        """Note that a hook wants ``position`` drawn again, like this."""
        self.asked[position] = self.asked.get(position, 0) + 1
        self.exclude, self.temperature = frozenset(exclude), temperature

    def admit_all(self) -> None:
        """Drop a hook's exclusions, because they leave nothing to draw."""
        self.exclude, self.unmet = frozenset(), True

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

    def settle(self) -> None:
        """Note that what was checked stands: the draws after it are as usual."""
        self.checks = 0, 0

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
        """The temperature of the draw at ``position``; None: the usual one, which is given."""
        times, since = self.checks
        if self.temperature is not None or not times or position < since:
            return self.temperature
        return max(temperature, min(_WARM + times * _WARMER, _WARMEST))

    def ban(self, position: int, token: Token) -> None:
        """Note that a ban excludes ``token`` at ``position``."""
        self.banned[position] = self.banned.get(position, frozenset()) | {token}

    def reject(self, position: int, what: Rejected) -> None:
        """Note what was drawn at ``position`` and is not there."""
        self.rejected[position] = (*self.rejected.get(position, ()), what)

    def rewind(self, to: int) -> None:
        """Forget what was decided for positions after ``to``: the text before them has changed."""
        for table in (self.asked, self.banned, self.rejected):
            for later in [p for p in table if p > to]:
                del table[later]

    def back(self, target: int, drawn: int) -> None:
        """Note that the positions from ``target`` up to, not including, ``drawn`` are redrawn."""
        self.rewind(target)
        if target < self.checks[1]:
            self.checks = 0, 0
        for position in range(target, drawn):
            self.attempts[position] = self.attempts.get(position, 0) + 1
        self._forget_wish()

    def begin_at(self, position: int) -> None:
        """Forget that the positions from this one on were drawn before."""
        for table in (self.attempts, self.agreed):
            for later in [p for p in table if p >= position]:
                del table[later]

    def _forget_wish(self) -> None:
        self.exclude, self.temperature, self.unmet = frozenset(), None, False

    def back_for(self, target: int, seen: int) -> None:
        """``back``, for a consumer who has seen the first ``seen`` positions.

        What was decided for later positions is forgotten: the consumer must not be able to tell
        how far the draws had run ahead.
        """
        self.back(target, seen)
        self.spent, self.checks, self.loops, self.looped = 0, (0, 0), (0, 0), 0
        self.agreed.update((p, self.attempts[p]) for p in range(target, seen))
        for table in (self.asked, self.banned, self.rejected):
            for later in [p for p in table if p >= seen]:
                del table[later]
        for later in [p for p in self.attempts if p >= seen]:
            self.attempts[later] = self.agreed.get(later, 0)
