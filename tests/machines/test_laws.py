"""Several machines give what one gives, whatever moves a history and its KV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.architectures import random_model

from ..fakes.checkpoints import LORA, quantised, write_adapter_of, write_random
from ..tables import table
from .ranks import run


def written(
    folder: Path,
    name: str,
    *,
    adapter: str | None = None,
    kv_bits: int = 0,
    quantise: bool = False,
    **shape: Any,
) -> str:
    how: dict[str, Any] = {"change": quantised} if quantise else {}
    write_random(folder, name, **shape, **how)
    if kv_bits:
        (folder / f"kv-bits-{kv_bits}").touch()
    if adapter is not None:
        config = json.loads((folder / "config.json").read_text())
        model = random_model(name, vocab_size=config["vocab_size"])
        lora = {**LORA, "keys": ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"]}
        write_adapter_of(model, folder / "adapter", kind=adapter, lora=lora)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("case", table("divided"), ids=lambda case: case["what"])
def test_several_machines_give_what_one_gives(case: dict[str, Any], tmp_path: Path) -> None:
    size, models = case["ranks"], case["models"]
    folders = [written(tmp_path / key, **{"name": key, **each}) for key, each in models.items()]
    cache = str(tmp_path / "cache") if case["on_disk"] else ""
    ended = run(["-m", "tests.machines.laws", cache, *folders], size, timeout=120)
    assert [each.code for each in ended] == [0] * size, "".join(each.err for each in ended)
    found = ended[0].out.splitlines()
    more = sum(bool(cache) or "adapter" in each for each in models.values())
    assert len(found) == 6 * len(models) + more
    assert [line for line in found if not line.endswith(": equal")] == []
