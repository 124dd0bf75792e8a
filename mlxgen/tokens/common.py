"""How far two sequences are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

S = TypeVar("S", bound=Sequence[object])


def in_common(one: S, other: S) -> int:
    """The length of the longest common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
