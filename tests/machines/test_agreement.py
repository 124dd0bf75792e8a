"""What ranks must have in common, and what they say if they have not."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mlxgen.errors import MachineError
from mlxgen.machines.machines import VERSION, agree, versions

from ..tables import table
from .pretended import groups


def said(*facts: dict[str, Any]) -> Sequence[str | None]:
    """What each rank says about the facts of all."""

    def compare(rank: int) -> str | None:
        try:
            agree(ranks[rank], facts[rank])
        except MachineError as error:
            return str(error)
        return None

    ranks = groups(len(facts))
    with ThreadPoolExecutor(len(facts)) as pool:
        return list(pool.map(compare, range(len(facts))))


@pytest.mark.parametrize("case", table("agreements"), ids=lambda case: case["what"])
def test_what_differs_is_named_with_its_values_and_what_to_do(case: dict[str, Any]) -> None:
    assert said(*case["facts"]) == case["said"]


def test_versions_are_those_of_all_that_decides_what_a_rank_computes() -> None:
    packages = {name.removeprefix(VERSION) for name in versions()}
    assert packages == {"mlxgen", "mlx", "mlx-lm", "Python"}
