"""How far the end of one sequence is the start of another."""

from __future__ import annotations

from collections.abc import Sequence
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
