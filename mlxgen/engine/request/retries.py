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

_WARM, _WARMER, _WARMEST = 0.7, 0.1, 1.5  # temperatures of another try: ever warmer


class Decided(NamedTuple):
    """What was decided for a position: the draws that were ``rejected`` there, in order, what a ban
    or a loop excluded, and how often hooks have ``asked`` for another draw.

    ``exclude`` and ``temperature`` are what a hook wants of the next draw. ``unmet``: it excluded
    every token that could come, or all that came was objected to and the best of it stands.
    """

    rejected: tuple[Rejected, ...] = ()
    banned: frozenset[Token] = frozenset()
    asked: int = 0
    exclude: frozenset[Token] = frozenset()
    temperature: float | None = None
    unmet: bool = False

    @property
    def excluded(self) -> frozenset[Token]:
        """The tokens that the next draw must not give."""
        return self.banned | self.exclude


class Tries(NamedTuple):
    """How often text was taken back for one reason and has not got further than ``until`` since,
    and how many tokens that took back in all."""

    times: int = 0
    until: int = 0
    tokens: int = 0


NOTHING, NEVER = Decided(), Tries()


@dataclass(slots=True)
class Retries:
    """See the module.

    - ``attempts``: how often a position was drawn before; each attempt draws with other random
      numbers. ``agreed``: the attempts that a consumer's rewinds have caused. Those at positions
      that the consumer has not seen must not change what it gets after a rewind.
    - ``tries``: by the reason, so that nothing is taken back for ever.
    """

    attempts: dict[int, int] = field(default_factory=dict)
    agreed: dict[int, int] = field(default_factory=dict)
    decided: dict[int, Decided] = field(default_factory=dict)
    tries: dict[str, Tries] = field(default_factory=dict)

    def fork(self) -> Retries:
        """An independent copy."""
        return forked(self)

    def at(self, position: int) -> Decided:
        """What was decided for a position."""
        return self.decided.get(position, NOTHING)

    def reject(self, position: int, what: Rejected) -> None:
        """Note what was drawn at ``position`` and is not there."""
        known = self.at(position)
        self.decided[position] = known._replace(rejected=(*known.rejected, what))

    def exclude(self, position: int, token: Token) -> None:
        """Let a token not come there again."""
        known = self.at(position)
        self.decided[position] = known._replace(banned=known.banned | {token})

    def ask(
        self, position: int, exclude: Collection[Token] = (), temperature: float | None = None
    ) -> None:
        """Note that a hook wants ``position`` drawn again, like this."""
        known = self.at(position)
        self.decided[position] = known._replace(
            asked=known.asked + 1, exclude=frozenset(exclude), temperature=temperature
        )

    def give_up(self, position: int) -> None:
        """Let what comes there stand, and exclude nothing for a hook."""
        self.decided[position] = self.at(position)._replace(exclude=frozenset(), unmet=True)

    def again(self, reason: str, start: int, until: int) -> Tries:
        """Count that text from ``start`` on, all before ``until``, cannot stay for a reason."""
        known = self.tries.get(reason, NEVER)
        times = known.times if start <= known.until else 0
        tries = self.tries[reason] = Tries(times + 1, until, known.tokens)
        return tries

    def spend(self, reason: str, tokens: int) -> None:
        """Count tokens that were taken back for a reason."""
        known = self.tries.get(reason, NEVER)
        self.tries[reason] = known._replace(tokens=known.tokens + tokens)

    def warmth(self, position: int, temperature: float) -> float | None:
        """The temperature of the draw at ``position`` if not the usual one, which is given: what a
        hook wants, or one at which draws vary after a finished text was taken back."""
        if (wanted := self.at(position).temperature) is not None:
            return wanted
        times, since, _ = self.tries.get("check", NEVER)
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
        if target in self.decided:
            self.decided[target] = Decided(*self.decided[target][:3])  # without a hook's wish
        for position in range(target, drawn):
            self.attempts[position] = self.attempts.get(position, 0) + 1

    def back_for(self, target: int, seen: int) -> None:
        """``back``, for a consumer who has seen the first ``seen`` positions.

        What was decided for later positions is forgotten: the consumer must not be able to tell
        how far the draws had run ahead.
        """
        self.back(target, seen)
        self.rewind(seen - 1)
        if target in self.decided:
            self.decided[target] = self.decided[target]._replace(asked=0)
        self.tries.clear()
        self.agreed.update((position, self.attempts[position]) for position in range(target, seen))
        for later in [position for position in self.attempts if position >= seen]:
            self.attempts[later] = self.agreed.get(later, 0)

    def begin_at(self, position: int) -> None:
        """Forget that the positions from this one on were drawn before."""
        for table in (self.attempts, self.agreed):
            for later in [each for each in table if each >= position]:
                del table[later]
