"""Two ranks that each load a part of a model compute what the whole model does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.architectures import random_model

from mlxgen.loading.checkpoint import read_json

from ..fakes.checkpoints import LORA, quantised, write_adapter_of, write_random
from .ranks import run

pytestmark = pytest.mark.slow

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
FEW: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 256, "intermediate_size": 512, **HEADS},
    "qwen3_next": {},
}
MORE: dict[str, dict[str, Any]] = {
    "quantised": {"name": "llama", "change": quantised, "intermediate_size": 128},
    "windows": {
        "name": "llama",
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "adapted": {"name": "llama", "adapter": "lora"},
    "adapted layers": {"name": "qwen3_next", "adapter": "dora"},
    "qwen3": HEADS,
    "gpt_oss": HEADS,
    "qwen3_moe": HEADS,
}


@pytest.fixture(scope="module", params=[FEW, MORE])
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What both ranks say of each model."""
    folder = tmp_path_factory.mktemp("models")
    given = [
        str(written(folder / key, **{"name": key, **shape})) for key, shape in request.param.items()
    ]
    ended = run(["-m", "tests.machines.parting", *given])
    assert [each.code for each in ended] == [0, 0], ended[0].err + ended[1].err
    said = [json.loads(line) for each in ended for line in each.out.splitlines()]
    assert len(said) == 2 * len(given)
    return said


def written(folder: Path, name: str, *, adapter: str | None = None, **shape: Any) -> Path:
    write_random(folder, name, **shape)
    if adapter is not None:
        model = random_model(name, vocab_size=read_json(folder / "config.json")["vocab_size"])
        lora = {**LORA, "keys": ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"]}
        write_adapter_of(model, folder / "adapter", kind=adapter, lora=lora)
    return folder


def test_parts_compute_what_the_whole_computes(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["same"] and rank["off"] < 1e-5 and rank["width"], rank


def test_parts_run_sequences_together_as_the_whole_does(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["together"] and rank["together quantised"], rank


def test_no_rank_reads_the_parts_of_others(found: list[dict[str, Any]]) -> None:
    for rank in found:
        if rank["name"] == "llama":
            assert rank["share"] < 0.6 and rank["peak"] < 0.8, rank


def test_the_memory_for_kv_is_that_of_the_part(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["growing"] == 0.5, rank


def test_layers_are_divided_only_if_matrices_cannot_be(found: list[dict[str, Any]]) -> None:
    for rank in found:
        kind = "pipeline" if rank["name"] in ("qwen3_next", "adapted layers") else "tensor"
        assert rank["split"].endswith(f" of 2 ({kind} parallel)")


def test_a_part_is_told_from_the_other_and_takes_no_adapter_later(
    found: list[dict[str, Any]],
) -> None:
    assert len({rank["digest"] for rank in found}) == len(found)
    for rank in found:
        assert "on several machines already; load the model with it" in rank["refused"]
