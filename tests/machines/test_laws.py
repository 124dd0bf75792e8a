"""Several machines give what one gives, whatever moves a history and its KV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..fakes.checkpoints import quantised, write_random
from .ranks import run

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
WINDOWS = {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}
SIXES = {"hidden_size": 96, "intermediate_size": 96}
FEW: dict[str, dict[str, Any]] = {
    "windows": {"name": "llama", **WINDOWS},
    "grouped queries, experts": {"name": "qwen3_moe", **HEADS},
}
THREE: dict[str, dict[str, Any]] = {
    "three heads": {"name": "llama", "num_attention_heads": 3, "num_key_value_heads": 3, **SIXES},
    "layers": {"name": "qwen3_next", "num_hidden_layers": 6},
}
MORE: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": HEADS,
    "gpt_oss": HEADS,
    "deepseek_v3": {},
    "quantised": {"name": "llama", "change": quantised, "intermediate_size": 128},
    "layers": {"name": "qwen3_next"},
}


@pytest.mark.parametrize(
    ("shapes", "size", "disk"),
    [
        pytest.param(FEW, 2, False, marks=pytest.mark.slow),
        pytest.param(MORE, 2, True, marks=pytest.mark.slow),
        pytest.param(THREE, 3, False, marks=pytest.mark.slow),
    ],
)
def test_several_machines_give_what_one_gives(
    shapes: dict[str, Any], size: int, disk: bool, tmp_path: Path
) -> None:
    folders = [
        str(write_random(tmp_path / key, **{"name": key, **shape})) for key, shape in shapes.items()
    ]
    cache = str(tmp_path / "cache") if disk else ""
    ended = run(["-m", "tests.machines.laws", cache, *folders], size, timeout=120)
    assert [each.code for each in ended] == [0] * size, "".join(each.err for each in ended)
    found = ended[0].out.splitlines()
    assert len(found) == (5 + disk) * len(shapes)
    assert [line for line in found if not line.endswith(": equal")] == []
