"""Two machines give what one gives, whatever moves a history and its KV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..fakes.checkpoints import quantised, write_random
from .ranks import run

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
WINDOWS = {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}
FEW: dict[str, dict[str, Any]] = {
    "llama": {},
    "grouped queries": {"name": "qwen3", **HEADS},
    "windows": {"name": "llama", **WINDOWS},
    "experts": {"name": "qwen3_moe"},
}
MORE: dict[str, dict[str, Any]] = {
    "gpt_oss": HEADS,
    "deepseek_v3": {},
    "quantised": {"name": "llama", "change": quantised, "intermediate_size": 128},
    "layers": {"name": "qwen3_next"},
}


@pytest.mark.parametrize("shapes", [FEW, pytest.param(MORE, marks=pytest.mark.slow)])
def test_two_machines_give_what_one_gives(shapes: dict[str, Any], tmp_path: Path) -> None:
    folders = [
        str(write_random(tmp_path / key, **{"name": key, **shape})) for key, shape in shapes.items()
    ]
    cache = str(tmp_path / "cache")
    first, second = run(["-m", "tests.machines.laws", cache, *folders], timeout=120)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    found = first.out.splitlines()
    assert len(found) == 9 * len(shapes)
    assert [line for line in found if not line.endswith(": equal")] == []
