"""How hard the random tests try: a quarter by default, all of it with ``scripts/test --all``."""

import os

ALL = os.environ.get("MLXGEN_TESTS") == "all"


def tries(count: int) -> int:
    """How many of ``count`` random cases to try in this run."""
    return count if ALL else max(3, count // 4)
