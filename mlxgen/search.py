"""Marks and patterns in a growing text: complete ones, and those that its end may begin.

``Patterns`` knows no texts, tokens or positions. Its state is the longest end of the symbols so far
that begins a pattern; nothing else is kept between two steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

P = TypeVar("P", str, tuple[int, ...])


class Patterns(Generic[P]):
    """Finds non-empty patterns in symbols that arrive one by one, each as a pattern of one.

    The patterns are sorted, which takes 50 ms for 100,000 of them and needs no table of all their
    beginnings. Where symbols begin no pattern, a step is a single look-up.
    """

    def __init__(self, patterns: Iterable[P]) -> None:
        self._known: frozenset[P] = frozenset(patterns)
        if not all(self._known):
            raise ValueError("expected patterns that are not empty, got an empty one")
        self._sorted: list[P] = sorted(self._known)
        self._lengths = sorted({len(pattern) for pattern in self._known}, reverse=True)
        self._starts: frozenset[object] = frozenset(pattern[0] for pattern in self._known)

    def step(self, state: P, symbol: P) -> P:
        """The state after one more symbol."""
        if not state and symbol[0] not in self._starts:
            return state
        state = state + symbol
        while state and not self._begins(state):
            state = state[1:]
        return state

    def completed(self, state: P) -> P | None:
        """The longest pattern that a state ends with."""
        for length in self._lengths:
            if length <= len(state) and state[-length:] in self._known:
                return state[-length:]
        return None

    def walk(self, state: P, symbols: P) -> tuple[P, int, P | None]:
        """The state after ``symbols``, or after the pattern that completes first among them.

        Also returns how many symbols that took, and the pattern (the longest, if several complete).
        """
        if state or not self._starts.isdisjoint(symbols):
            for count in range(len(symbols)):
                state = self.step(state, symbols[count : count + 1])
                found = self.completed(state)
                if found is not None:
                    return state, count + 1, found
        return state, len(symbols), None

    def _begins(self, state: P) -> bool:
        place = bisect_left(self._sorted, state)
        return place < len(self._sorted) and self._sorted[place][: len(state)] == state


def sequence_overlap(s1: Sequence[Any], s2: Sequence[Any]) -> int:
    """The length of the longest suffix of ``s1`` that is a prefix of ``s2``.

    Takes any two sequences whose items can be compared, and time that is linear in the
    shorter one: the prefix function of Knuth, Morris and Pratt.

    >>> sequence_overlap("a stop", "topple")
    3
    """
    longest = min(len(s1), len(s2))
    # A border of this is a suffix of `s1` that is a prefix of `s2`: nothing equals the separator.
    items = [*s2[:longest], object(), *s1[len(s1) - longest :]]
    borders = [0] * len(items)  # of each prefix: its longest proper suffix that is a prefix, too
    matched = 0
    for index in range(1, len(items)):
        while matched and items[index] != items[matched]:
            matched = borders[matched - 1]
        if items[index] == items[matched]:
            matched += 1
        borders[index] = matched
    return matched


def first_mark(text: str, marks: Iterable[str]) -> tuple[int, str]:
    """The place of the first mark (the longest, of several at one place), and that mark; without
    any, the place where one may begin, and ``""``. Empty marks are never found."""
    known = [mark for mark in marks if mark]
    found = [(text.find(mark), -len(mark), mark) for mark in known if mark in text]
    if not found:
        return len(text) - max((sequence_overlap(text, mark) for mark in known), default=0), ""
    start, _, mark = min(found)
    return start, mark
