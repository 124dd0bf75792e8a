"""How far the end of one sequence is the start of another, and which mark a text has first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def sequence_overlap(s1: Sequence[Any], s2: Sequence[Any]) -> int:
    """The length of the longest suffix of ``s1`` that is a prefix of ``s2``.

    Takes any two sequences whose items can be compared, and time that is linear in the
    shorter one: the prefix function of Knuth, Morris and Pratt.

    >>> sequence_overlap("a stop", "topple")
    3
    """
    longest = min(len(s1), len(s2))
    # A border of this is an end of `s1` that starts `s2`, since nothing equals what is between.
    items = [*s2[:longest], object(), *s1[len(s1) - longest :]]
    borders = [0] * len(items)  # of each prefix, its longest proper suffix that is one too
    matched = 0
    for index in range(1, len(items)):
        while matched and items[index] != items[matched]:
            matched = borders[matched - 1]
        if items[index] == items[matched]:
            matched += 1
        borders[index] = matched
    return matched


def first_mark(text: str, marks: Iterable[str]) -> tuple[int, str]:
    """Where the first mark is (the longest, of several at one place), and that mark; if there is
    none, where one may begin, and ``""``. Empty marks are never found."""
    known = [mark for mark in marks if mark]
    found = [(text.find(mark), -len(mark), mark) for mark in known if mark in text]
    if not found:
        return len(text) - max((sequence_overlap(text, mark) for mark in known), default=0), ""
    start, _, mark = min(found)
    return start, mark
