"""Keeping a valid end within reach of the budget (``close_json``).

Owns the shortest known way to an end that the filters accept. Must never append a token:
the row does, and allows nothing but the way once ``forcing``. Invariant: while ``active``,
``way`` is a run after which the text may end, no longer than the budget that was left at
the last look; far from the end of the budget nothing is looked for, and it is ``None``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..filters import Constraint, shortest_end
from ..tokens import Token

WINDOW = 512  # tokens before the end of the budget in which ends are looked for


class Closing:
    """The way out of one sequence's filters; see the module."""

    __slots__ = ("_constraint", "active", "forcing", "way")

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self.active = True
        self.forcing = False
        self.way: Sequence[Token] | None = None

    def look(self, left: int, taken: Token | None = None) -> bool:
        """Find the way from here; False if there was one and now none fits in ``left`` tokens.

        ``taken`` is the token since the last look: if it is a step on the way, the rest
        stands. Where no end ever fitted, ``active`` becomes False: none will later.
        """
        if not self.active or left > WINDOW:
            return True
        if self.way and self.way[0] == taken:
            self.way = self.way[1:]
            return True
        way = shortest_end(self._constraint, left, enough=left)
        if way is None and self.way is not None:
            self.forcing = True
            return False
        self.way = way
        self.active = way is not None
        return True

    def give_up(self) -> None:
        """The way cannot be taken: go on without."""
        self.active = self.forcing = False

    def restart(self, left: int) -> None:
        """The history was rewound: look anew."""
        self.active, self.forcing, self.way = True, False, None
        self.look(left)

    def fork(self, constraint: Constraint) -> Closing:
        """An independent copy for a forked constraint."""
        twin = Closing(constraint)
        twin.active, twin.forcing, twin.way = self.active, self.forcing, self.way
        return twin
