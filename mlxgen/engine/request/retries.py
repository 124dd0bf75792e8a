"""What repeated draws of one sequence depend on, by position.

Owns the number of attempts, the exclusions, the wishes of hooks, and how much bans may cost.
Must never know why a position is drawn again. Invariant: what was decided for a position holds only
while the text before it stands.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from ...tokens import Token

DRAWS_FOR_BANS = 32  # that are taken back, for each token and once more: 1,056 before the first


@dataclass(slots=True)
class Retries:
    """See the module.

    - ``attempts``: how often a position was drawn before; another attempt draws with
      other random numbers.
    - ``agreed``: the attempts that the consumer's rewinds have come to; those beyond them, at
      positions that he has not seen yet, are between the draws and the rules.
    - ``asked``: how often hooks have asked for another draw at a position.
    - ``banned``: tokens that bans have excluded there.
    - ``spent``, ``furthest``: draws that bans have taken back, and the most tokens there were.
    - ``exclude``, ``temperature``: what a hook wants of the very next draw. ``unmet``: it wanted
      more than there is to choose from.
    """

    attempts: dict[int, int] = field(default_factory=dict)
    agreed: dict[int, int] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    banned: dict[int, frozenset[Token]] = field(default_factory=dict)
    spent: int = 0
    furthest: int = 0
    exclude: frozenset[Token] = frozenset()
    temperature: float | None = None
    unmet: bool = False

    def fork(self) -> Retries:
        """An independent copy."""
        return replace(
            self,
            attempts=dict(self.attempts),
            agreed=dict(self.agreed),
            asked=dict(self.asked),
            banned=dict(self.banned),
        )

    def excluded(self, position: int) -> frozenset[Token]:
        """Tokens that the next draw at ``position`` may not give."""
        return self.banned.get(position, frozenset()) | self.exclude

    @property
    def differs(self) -> bool:
        """Whether a hook wants the very next draw to be another than those behind it."""
        return bool(self.exclude) or self.temperature is not None

    def accepted(self) -> None:
        """The next draw has happened and stands: what a hook wanted of it is done with."""
        if self.differs or self.unmet:
            self._forget_wish()

    def ask(
        self, position: int, exclude: Collection[Token] = (), temperature: float | None = None
    ) -> None:
        """A hook wants ``position`` drawn again, like this."""
        self.asked[position] = self.asked.get(position, 0) + 1
        self.exclude, self.temperature = frozenset(exclude), temperature

    def admit_all(self) -> None:
        """What a hook excludes of the next draw leaves nothing: it excludes nothing then."""
        self.exclude, self.unmet = frozenset(), True

    def spend(self, position: int, drawn: int) -> bool:
        """A ban takes ``drawn`` tokens back to ``position``; whether there is room for that.

        Each place that the text has come to allows some: else an expression that every text
        matches is looked for in one text after the other, with a token less to begin with.
        """
        self.spent += drawn - position
        self.furthest = max(self.furthest, drawn)
        return self.spent <= DRAWS_FOR_BANS * (self.furthest + DRAWS_FOR_BANS)

    def ban(self, position: int, token: Token) -> None:
        """A ban excludes ``token`` at ``position``."""
        self.banned[position] = self.banned.get(position, frozenset()) | {token}

    def rewind(self, to: int) -> None:
        """Forget what was decided for positions that another text comes before now."""
        for table in (self.asked, self.banned):
            for later in [p for p in table if p > to]:
                del table[later]

    def back(self, target: int, drawn: int) -> None:
        """Positions from ``target`` on will be drawn again; ``drawn`` is behind the last one."""
        self.rewind(target)
        for position in range(target, drawn):
            self.attempts[position] = self.attempts.get(position, 0) + 1
        self._forget_wish()

    def _forget_wish(self) -> None:
        self.exclude, self.temperature, self.unmet = frozenset(), None, False

    def back_for(self, target: int, seen: int) -> None:
        """``back`` for a consumer who has seen the first ``seen`` positions.

        What was decided for those behind them is forgotten: how far the draws have run ahead of
        him must not be told from what he gets.
        """
        self.back(target, seen)
        self.spent, self.furthest = 0, 0
        self.agreed.update((p, self.attempts[p]) for p in range(target, seen))
        for table in (self.asked, self.banned):
            for later in [p for p in table if p >= seen]:
                del table[later]
        for later in [p for p in self.attempts if p >= seen]:
            self.attempts[later] = self.agreed.get(later, 0)
