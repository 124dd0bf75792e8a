"""Several machines give what one gives, whatever moves a history and its KV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.architectures import random_model

from mlxgen.loading.checkpoint import read_json

from ..fakes.checkpoints import LORA, quantised, write_adapter_of, write_random
from .ranks import run

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
WINDOWS = {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}
SIXES = {"hidden_size": 96, "intermediate_size": 96}
PLAIN: dict[str, dict[str, Any]] = {
    "quantised KV": {"name": "llama", "hidden_size": 128, "kv_bits": 8, **HEADS},
    "windows": {"name": "llama", **WINDOWS},
    "grouped queries, experts": {"name": "qwen3_moe", **HEADS},
    "adapted": {"name": "llama", "adapter": "lora"},
    "adapted layers": {"name": "qwen3_next", "adapter": "dora"},
}
ON_DISK: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 256, "intermediate_size": 512, **HEADS},
    "qwen3": HEADS,
    "gpt_oss": HEADS,
    "deepseek_v3": {},
    "quantised": {"name": "llama", "change": quantised, "intermediate_size": 128},
    "layers": {"name": "qwen3_next"},
}
THREE: dict[str, dict[str, Any]] = {
    "three heads": {"name": "llama", "num_attention_heads": 3, "num_key_value_heads": 3, **SIXES},
    "layers": {"name": "qwen3_next", "num_hidden_layers": 6},
}


def written(
    folder: Path, name: str, *, adapter: str | None = None, kv_bits: int = 0, **shape: Any
) -> str:
    write_random(folder, name, **shape)
    if kv_bits:
        (folder / f"kv-bits-{kv_bits}").touch()
    if adapter is not None:
        model = random_model(name, vocab_size=read_json(folder / "config.json")["vocab_size"])
        lora = {**LORA, "keys": ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"]}
        write_adapter_of(model, folder / "adapter", kind=adapter, lora=lora)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shapes", "size", "cache"), [(PLAIN, 2, ""), (ON_DISK, 2, "cache"), (THREE, 3, "")]
)
def test_several_machines_give_what_one_gives(
    shapes: dict[str, Any], size: int, cache: str, tmp_path: Path
) -> None:
    folders = [written(tmp_path / key, **{"name": key, **each}) for key, each in shapes.items()]
    cache = cache and str(tmp_path / cache)
    ended = run(["-m", "tests.machines.laws", cache, *folders], size, timeout=120)
    assert [each.code for each in ended] == [0] * size, "".join(each.err for each in ended)
    found = ended[0].out.splitlines()
    more = sum(bool(cache) or "adapter" in each for each in shapes.values())
    assert len(found) == 6 * len(shapes) + more
    assert [line for line in found if not line.endswith(": equal")] == []
