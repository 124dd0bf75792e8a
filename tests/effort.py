"""How hard the tests try: a part by default, everything with ``scripts/test --all``."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

ALL = os.environ.get("MLXGEN_TESTS") == "all"
# The cases of a test beyond which every so many-th is tried
TABLES = {32: 32, 8: 8, 4: 3}


def tries(count: int) -> int:
    """How many of ``count`` random cases to try in this run."""
    return count if ALL else max(2, count // 32)


def table(name: str, part: int = 0, parts: int = 1) -> list[Any]:
    """The cases of a file in ``tests/data``; those that are ``slow`` only if all is to be tried."""
    file = Path(__file__).parent / "data" / f"{name}.jsonl"
    cases = map(json.loads, file.read_text(encoding="utf-8").splitlines()[part::parts])
    return [case for case in cases if ALL or not case.get("slow")]


def left_out(items: Sequence[pytest.Item], *, slow: bool) -> Iterable[pytest.Item]:
    """Those not to try in this run: most of large tables of cases, if they are not to be tried
    ``whole``, and, unless they are asked for, the ``slow`` tests."""
    table = Counter(map(_test_of, items))
    seen: Counter[str] = Counter()
    for item in items:
        test = _test_of(item)
        place, seen[test] = seen[test], seen[test] + 1
        is_slow = not slow and item.get_closest_marker("slow") is not None
        is_whole = item.get_closest_marker("whole") is not None
        size = 0 if is_whole else table[test]
        every = next((share for most, share in TABLES.items() if size > most), 1)
        if is_slow or place % every:
            yield item


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]
