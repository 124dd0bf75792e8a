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
    start = s2[:longest]
    fallback = _prefix_function(start)
    matched = 0
    for item in s1[len(s1) - longest :]:
        # All of `start` can match only at the last item, so `matched` is a valid index here.
        while matched and item != start[matched]:
            matched = fallback[matched - 1]
        if item == start[matched]:
            matched += 1
    return matched


def _prefix_function(sequence: Sequence[Any]) -> list[int]:
    """For each prefix, the length of its longest proper suffix that is also a prefix of it."""
    lengths = [0] * len(sequence)
    matched = 0
    for index in range(1, len(sequence)):
        while matched and sequence[index] != sequence[matched]:
            matched = lengths[matched - 1]
        if sequence[index] == sequence[matched]:
            matched += 1
        lengths[index] = matched
    return lengths
