"""How hard the tests try: a part by default, everything with ``scripts/test --all``."""

import os
from collections.abc import Iterable
from typing import TypeVar

ALL = os.environ.get("MLXGEN_TESTS") == "all"
T = TypeVar("T")


def tries(count: int) -> int:
    """How many of ``count`` random cases to try in this run."""
    return count if ALL else max(3, count // 8)


def some(cases: Iterable[T]) -> list[T]:
    """Those of a large table of cases to try in this run: all, or every third."""
    return list(cases) if ALL else list(cases)[::3]
