"""Banned strings and regular expressions, found as the text grows.

A ban is matched on characters; case counts unless the expression says otherwise. The ban that
completes first wins; if several complete at the same character, the one that starts first, then the
shortest. How the text was split into steps does not matter. The matcher does not know tokens, nor
what its caller does about a match.

All literal strings are searched for together. The search for an expression starts at the first
character where a match is still possible; the ``regex`` library's partial matching says where that
is. An expression that looks beyond its own end (``\\b``, ``$``, ``(?=...)``) completes once enough
text has arrived to settle what it saw, or when the text ends (``finish``).

Invariant: no later match can start before the last ``held`` characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..errors import StateError
from ..forks import Steps
from ..search import Patterns
from .expression import Expression

Pattern: TypeAlias = str | re.Pattern[str]


@dataclass(frozen=True, slots=True)
class BanMatch:
    """A ban that completed, and its place in the whole text."""

    pattern: str
    start: int
    end: int


_Step: TypeAlias = tuple[int, str, str, tuple[int, ...], BanMatch | None]
"""The length of the text, the step's own text, the state of the search for literals, where a match
of each expression may start, and the match."""


class BanMatcher(Steps[_Step]):
    """Looks for banned strings and regular expressions in a growing text.

    Strings must not be empty. OptionError if an expression matches the empty string, is made of
    bytes, or looks ahead without limit. ``stands``: says which matches are let through; it must
    always say the same of the same match.
    """

    __slots__ = ("_expressions", "_literals", "_stands")

    _TABLES = ("_literals", "_expressions", "_stands")

    def __init__(
        self,
        patterns: Sequence[Pattern] = (),
        stands: Callable[[BanMatch], bool] = lambda match: False,
    ) -> None:
        self._stands = stands
        literals = [pattern for pattern in patterns if isinstance(pattern, str)]
        expressions = [Expression(p) for p in patterns if isinstance(p, re.Pattern)]
        self._literals: Patterns[str] = Patterns(literals)
        self._expressions = tuple(expressions)
        super().__init__((0, "", "", (0,) * len(expressions), None))

    def advance(self, text: str) -> BanMatch | None:
        """Takes one step: the text that became complete with it.

        StateError after a match, until rewound. OptionError if an expression takes too long; then
        nothing changes.
        """
        start, _, state, undecided, match = self._steps[-1]
        if match is not None:
            raise StateError("a ban has matched; rewind the matcher before the next step")
        found: list[tuple[int, BanMatch]] = []  # with the length of text that made it certain
        state, literal = self._literal(state, text, start)
        if literal is not None:
            found.append((literal.end, literal))
        if text and undecided:
            after = []
            for expression, begin in zip(self._expressions, undecided, strict=True):
                window, base = self._window(begin - expression.behind)
                hit, left = expression.look(window + text, begin - base, start - base)
                while hit is not None:
                    seen = BanMatch(expression.source, base + hit.start, base + hit.end)
                    if not self._stands(seen):
                        found.append((base + hit.certain, seen))
                        break
                    hit, left = expression.look(window + text, hit.start + 1, start - base)
                after.append(base + left)
            undecided = tuple(after)
        if found:
            match = min(found, key=lambda item: (item[0], item[1].start, item[1].end))[1]
        self._steps.append((start + len(text), text, state, undecided, match))
        return match

    def finish(self, cut: int | None = None) -> BanMatch | None:
        """The ban that completes because the text ends here, or after its first ``cut`` characters.
        Changes nothing."""
        *_, undecided, match = self._steps[-1]
        if match is not None:
            return match
        if cut is not None:  # starts that later text ruled out are possible again
            *_, undecided, _ = self._steps[self._within(cut)]
        found = []
        for expression, start in zip(self._expressions, undecided, strict=True):
            window, base = self._window(start - expression.behind)
            if cut is not None:
                window = window[: cut - base]
            hit = expression.look_at_end(window, start - base)
            while hit is not None:
                match = BanMatch(expression.source, base + hit.start, base + hit.end)
                if not self._stands(match):
                    found.append(match)
                    break
                hit = expression.look_at_end(window, hit.start + 1)
        return min(found, key=lambda match: (match.end, match.start), default=None)

    def _literal(self, state: str, text: str, start: int) -> tuple[str, BanMatch | None]:
        """The state after ``text``, which begins at ``start``, or after the first literal in it
        that is not let through; and that match."""
        walked = 0
        while True:
            state, count, literal = self._literals.walk(state, text[walked:])
            walked += count
            if literal is None:
                return state, None
            end = start + walked
            match = BanMatch(literal, end - len(literal), end)
            if not self._stands(match):
                return state, match

    def _window(self, start: int) -> tuple[str, int]:
        """The text from the step that holds ``start`` on, and where that step starts."""
        last = self._within(start)
        return "".join([step[1] for step in self._steps[last + 1 :]]), self._steps[last][0]

    def _within(self, end: int) -> int:
        """How many steps are within the first ``end`` characters."""
        count = len(self)
        while count and self._steps[count][0] > end:
            count -= 1
        return count

    @property
    def held(self) -> int:
        """Characters at the end of the text that a ban may still claim."""
        end, _, literals, undecided, _ = self._steps[-1]
        held = len(literals)
        return max(held, end - min(undecided)) if undecided else held
