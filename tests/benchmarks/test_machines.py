"""What is measured of several machines."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from benchmarks import machines
from benchmarks.architectures import random_model
from mlx.utils import tree_flatten


class _Group:
    """Stands for two machines, as their first."""

    def size(self) -> int:
        return machines.RANKS

    def rank(self) -> int:
        return 0


@pytest.mark.parametrize("shape", [machines.WHOLE, machines.DEEP], ids=["whole", "deep"])
def test_what_is_measured_alone_is_what_a_rank_has(shape: dict[str, Any]) -> None:
    whole: Any = random_model("llama", **shape)
    whole.shard(_Group())
    alone = random_model("llama", **machines.cut(shape))
    sizes = [
        {name: array.shape for name, array in dict(tree_flatten(each.parameters())).items()}
        for each in (whole, alone)
    ]
    assert sizes[0] == sizes[1]
    mx.clear_cache()
