"""What a text must not say: banned strings and expressions, found as the text grows.

A ban is matched on characters; case counts unless the expression says otherwise. The
winner is the ban that completes first; if several complete at the same character, the one
that starts first. How the text was cut into steps does not matter. The matcher knows no
tokens, and not what happens to a match.

Literal strings run through one automaton. An expression is searched for from the first
character at which a match is still possible; the ``regex`` library's partial matching says
where that is. An expression that looks beyond its own end (``\\b``, ``$``, ``(?=...)``)
completes when enough text has come to make what it saw certain, or when the text ends
(``finish``).

Invariant: no later match can start before the last ``held`` characters.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ..errors import OptionError, RewindError, StateError
from .automaton import Automaton, State
from .expression import Expression

Pattern: TypeAlias = str | re.Pattern[str]


@dataclass(frozen=True, slots=True)
class BanMatch:
    """A ban that completed, and its place in the whole text."""

    pattern: str
    start: int
    end: int


class BanMatcher:
    """Looks for banned strings and regular expressions in a growing text.

    OptionError if a pattern is empty or matches the empty string, is made of bytes, or
    looks ahead without limit.
    """

    __slots__ = (
        "_ends",
        "_expressions",
        "_literals",
        "_match",
        "_parts",
        "_states",
        "_steps",
        "_undecided",
    )

    def __init__(self, patterns: Pattern | Iterable[Pattern] = ()) -> None:
        literals: list[str] = []
        expressions: list[Expression] = []
        for pattern in [patterns] if isinstance(patterns, str | re.Pattern) else patterns:
            if isinstance(pattern, re.Pattern):
                expressions.append(Expression(pattern))
            else:
                literals.append(_literal(pattern))
        self._literals: Automaton[str] | None = Automaton(literals) if literals else None
        self._expressions = tuple(expressions)
        self._match: BanMatch | None = None
        self._steps = 0
        # One entry for each step, if there is anything to look for:
        self._ends: list[int] = []  # characters of the text
        self._states: list[State[str]] = []  # of the literals
        self._parts: list[str] = []  # the text of each step, if there are expressions
        self._undecided: list[tuple[int, ...]] = []  # where a match of each may start

    def advance(self, text: str) -> BanMatch | None:
        """Takes one step with the text that it completed.

        StateError after a match, until rewound. OptionError if an expression takes too
        long; then nothing changes.
        """
        if self._literals is None and not self._expressions:
            self._steps += 1
            return None
        if self._match is not None:
            raise StateError("a ban has matched; rewind the matcher before the next step")
        start = self._ends[-1] if self._steps else 0
        self._ends.append(start + len(text))
        found: list[tuple[int, BanMatch]] = []  # each after the characters that make it certain
        try:
            if self._literals is not None:
                match = self._advance_literals(self._literals, text, start)
                if match is not None:
                    found.append((match.end, match))
            if self._expressions:
                found += self._advance_expressions(text, start)
        except BaseException:
            self._cut(self._steps)
            raise
        self._steps += 1
        if found:
            self._match = min(found, key=lambda item: (item[0], item[1].start))[1]
        return self._match

    def _advance_literals(self, literals: Automaton[str], text: str, start: int) -> BanMatch | None:
        state = self._states[-1] if self._steps else literals.root
        state, count, literal = literals.walk(state, text)
        self._states.append(state)
        if literal is None:
            return None
        return BanMatch(str(literal), start + count - len(literal), start + count)

    def _advance_expressions(self, text: str, old_end: int) -> list[tuple[int, BanMatch]]:
        before = self._undecided[-1] if self._steps else (0,) * len(self._expressions)
        self._parts.append(text)
        if not text:
            self._undecided.append(before)
            return []
        after = []
        found: list[tuple[int, BanMatch]] = []
        for expression, start in zip(self._expressions, before, strict=True):
            window, base = self._window(start - expression.behind)
            hit, left = expression.look(window, start - base, old_end - base)
            after.append(base + left)
            if hit is not None:
                match = BanMatch(expression.source, base + hit.start, base + hit.end)
                found.append((base + hit.certain, match))
        self._undecided.append(tuple(after))
        return found

    def finish(self, cut: int | None = None) -> BanMatch | None:
        """The ban that completes because the text ends here, or after its first ``cut``
        characters. Changes nothing."""
        if self._match is not None or not self._steps:
            return self._match
        found = []
        # What may match there was not ruled out yet after the last step within the cut.
        step = self._steps if cut is None else bisect_right(self._ends, cut)
        for index, expression in enumerate(self._expressions):
            start = self._undecided[step - 1][index] if step else 0
            window, base = self._window(start - expression.behind)
            if cut is not None:
                window = window[: cut - base]
            hit = expression.look_at_end(window, start - base)
            if hit is not None:
                found.append(BanMatch(expression.source, base + hit.start, base + hit.end))
        return min(found, key=lambda match: (match.end, match.start), default=None)

    def _window(self, start: int) -> tuple[str, int]:
        """The text from the step that holds ``start`` on, and where that step starts."""
        first = bisect_right(self._ends, start) if start > 0 else 0
        return "".join(self._parts[first:]), self._ends[first - 1] if first else 0

    @property
    def held(self) -> int:
        """Characters at the end of the text that a ban may still claim."""
        held = self._states[-1].depth if self._states else 0
        if self._undecided:
            held = max(held, self._ends[-1] - min(self._undecided[-1]))
        return held

    def rewind(self, to: int) -> None:
        """Goes back to ``to`` steps; does nothing if there are no more than that."""
        if to < 0:
            raise RewindError(f"cannot rewind to {to} steps", possible=self._steps)
        if to >= self._steps:
            return
        self._cut(to)
        self._steps = to
        self._match = None

    def _cut(self, to: int) -> None:
        del self._ends[to:], self._states[to:], self._parts[to:], self._undecided[to:]

    def fork(self) -> BanMatcher:
        """An independent copy."""
        copy = BanMatcher()
        copy._literals = self._literals
        copy._expressions = self._expressions
        copy._match = self._match
        copy._steps = self._steps
        copy._ends = self._ends.copy()
        copy._states = self._states.copy()
        copy._parts = self._parts.copy()
        copy._undecided = self._undecided.copy()
        return copy

    def __len__(self) -> int:
        """Steps so far."""
        return self._steps


def _literal(pattern: object) -> str:
    if not isinstance(pattern, str):
        kind = type(pattern).__name__
        raise OptionError("banned", f"expected strings or compiled expressions, got {kind}")
    if not pattern:
        raise OptionError("banned", "an empty string matches everywhere; leave it out")
    return pattern
