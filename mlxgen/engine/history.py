"""What two token histories have in common.

Owns one question about token lists. Must never know what they are for.
"""

from __future__ import annotations

from ..tokens import Token


def in_common(one: list[Token], other: list[Token]) -> int:
    """The length of the longest common beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
