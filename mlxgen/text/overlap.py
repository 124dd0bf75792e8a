"""How far the end of one sequence is the start of another.

Owns one pure function. Must never know what the sequences stand for. Invariant: the time
is linear in the shorter of the two, whatever they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def sequence_overlap(s1: Sequence[Any], s2: Sequence[Any]) -> int:
    """The length of the longest end of ``s1`` that starts ``s2``.

    Any two sequences whose items can be compared. Knuth, Morris and Pratt's prefix
    function of ``s2``, run over the end of ``s1``.

    >>> sequence_overlap("a stop", "topple")
    3
    """
    longest = min(len(s1), len(s2))
    start = s2[:longest]
    fallback = _prefix_function(start)
    matched = 0
    for item in s1[len(s1) - longest :]:
        # No end of s1 this long is left when all of `start` matched: there is no next item.
        while matched and item != start[matched]:
            matched = fallback[matched - 1]
        if item == start[matched]:
            matched += 1
    return matched


def _prefix_function(sequence: Sequence[Any]) -> list[int]:
    """For each prefix, the length of its longest proper end that also starts it."""
    lengths = [0] * len(sequence)
    matched = 0
    for index in range(1, len(sequence)):
        while matched and sequence[index] != sequence[matched]:
            matched = lengths[matched - 1]
        if sequence[index] == sequence[matched]:
            matched += 1
        lengths[index] = matched
    return lengths
