"""What ranks must have in common, and what they say if they have not."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mlxgen.errors import MachineError
from mlxgen.machines.machines import MODEL_FILE, VERSION, agree, versions

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


def test_ranks_that_are_alike_agree_in_any_order_of_facts() -> None:
    one: dict[str, Any] = {"kv_bits": None, "limits": {"batch": 8, "rows": [1, 2]}}
    two: dict[str, Any] = {"limits": {"rows": [1, 2], "batch": 8}, "kv_bits": None}
    assert said(one | versions(), two | versions(), one | versions()) == [None] * 3
    assert None not in said(one, two, one | versions())
    packages = {name.removeprefix(VERSION) for name in versions()}
    assert packages == {"mlxgen", "mlx", "mlx-lm", "Python"}
    # Of the files of a model, a rank may lack the weights of layers that others run
    first, second = ({f"{MODEL_FILE}model-{number}.safetensors": "1a"} for number in (1, 2))
    assert said(first, second) == [None, None]


def test_what_differs_is_named_with_its_values_and_what_to_do() -> None:
    version, file = f"{VERSION}mlx", f"{MODEL_FILE}config.json"
    first, second, third = said(
        {version: "0.32.4", "max_batch": 8, "seed": 1, file: "1a"},
        {version: "0.32.2", "max_batch": 8, file: "2b"},
        {version: "0.32.4", "max_batch": 16, "seed": 1, file: "2b"},
    )
    assert first == (
        "the machines differ:\n"
        '  version of mlx: "0.32.4" on rank 0 (host-0) and rank 2 (host-2);'
        ' "0.32.2" on rank 1 (host-1)\n'
        "  max_batch: 8 on rank 0 (host-0) and rank 1 (host-1); 16 on rank 2 (host-2)\n"
        "  seed: 1 on rank 0 (host-0) and rank 2 (host-2); missing on rank 1 (host-1)\n"
        '  model file config.json: "1a" on rank 0 (host-0);'
        ' "2b" on rank 1 (host-1) and rank 2 (host-2)\n'
        "install the same versions on all machines\n"
        "start all ranks with the same options\n"
        "copy the model's folder from one machine to the others, or download it again"
    )
    assert second == "rank 1 (host-1) differs from the others; rank 0 says in what"
    assert third == "rank 2 (host-2) differs from the others; rank 0 says in what"
