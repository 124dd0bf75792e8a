"""A part of a model: which there is, and how one machine gets it. See also ``tests/machines``."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import mlx.core as mx
import mlx.nn as nn
import pytest
from benchmarks.architectures import random_model
from rich.console import Console

import mlxgen
from mlxgen.load import _find, _reading, join
from mlxgen.loading import hub
from mlxgen.loading.checkpoint import Checkpoint, fingerprint
from mlxgen.loading.pair import load_pair, part_of
from mlxgen.loading.sharding import Split
from mlxgen.progress import reading

from ..fakes.checkpoints import arrays, quantised, write_adapter, write_checkpoint, write_random
from ..machines.pretended import Raw
from .conftest import change, hub_answers


def part(source: Path | Checkpoint, group: Raw | None = None, **options: Any) -> Any:
    """A rank's part of a model, or all of it."""
    given: dict[str, Any] = {"adapter": None, "trust_remote_code": False, **options}
    source = source if isinstance(source, Checkpoint) else Checkpoint.open(source)
    return load_pair(source, group=group, **given)[0]


# ---- what cannot be divided ----


class Rotated(nn.Linear):
    """Computes more than a linear layer does, which one of mlx-lm's in its place would not."""


def rotated() -> nn.Module:
    model = random_model("llama")
    model.layers[1].mlp.up_proj = Rotated(64, 64)
    return model


def scaled() -> nn.Module:
    """With a scale for each expert."""
    model = random_model("qwen3_moe", num_attention_heads=4)
    switch = model.layers[1].mlp.switch_mlp
    switch.up_proj = switch.up_proj.to_quantized(16, 4, "nvfp4", global_scale=True)
    return model


THREE = {"num_attention_heads": 3, "num_key_value_heads": 3}  # 96 rows, no two heads of 48


@pytest.mark.parametrize(
    ("make", "count", "reason"),
    [
        (lambda: random_model("mamba"), 2, "'mamba' among machines.*shard.*llama"),
        (lambda: random_model("llama"), 3, "size 64 across 3"),
        (lambda: random_model("llama"), 4, "n_heads is 2, which is not a multiple of 4"),
        (lambda: random_model("gpt_oss"), 4, "num_attention_heads is 2, which is not a multiple"),
        (lambda: random_model("qwen3_next"), 5, r"split \[1, 1, 1, 1, 0\] must be positive"),
        (lambda: random_model("llama", **THREE), 2, "n_heads is 3, which is not a multiple of 2"),
        (rotated, 2, "layers.1.mlp.up_proj is a Rotated"),
        (scaled, 2, "global_scale of shape .*cut wrongly"),
    ],
)
def test_a_model_that_does_not_divide_evenly_is_refused(
    make: Callable[[], nn.Module], count: int, reason: str
) -> None:
    model, group = make(), Raw(1, count)
    with pytest.raises(mlxgen.UnsupportedModelError, match=reason):
        Split.of(model, group).cut(model, group)


def test_groups_of_quantised_weights_that_cannot_be_cut_are_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "quantised", change=quantised)

    def reading(arrays: list[mx.array]) -> NoReturn:
        raise AssertionError("it is read")

    with pytest.raises(mlxgen.UnsupportedModelError, match="this llama model among 2 machines"):
        part(folder, Raw(0, 2), reading=reading)


def test_what_cannot_be_divided_is_refused_before_its_weights_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_random(tmp_path / "model", "mamba")
    for weights in folder.glob("model*"):
        weights.unlink()
    asked = hub_answers(monkeypatch, fetched=folder)
    with pytest.raises(mlxgen.UnsupportedModelError, match="cannot divide the architecture"):
        _find("someone/mamba", None, part_of(Raw(0, 2), adapter=False))
    (patterns,) = (each["allow_patterns"] for each in asked)
    assert "*.json" in patterns and "safetensors" not in "".join(patterns)


# ---- parts ----


def test_a_rank_reads_its_part_of_every_matrix(pristine: Path) -> None:
    whole = arrays(part(pristine))
    parts = [arrays(part(pristine, Raw(rank, 2))) for rank in range(2)]
    for name, array in whole.items():
        mine = [each[name] for each in parts]
        if mine[0].shape == array.shape:
            assert all(mx.array_equal(each, array) for each in mine)
        else:
            axis = next(i for i, n in enumerate(array.shape) if n != mine[0].shape[i])
            assert mx.array_equal(mx.concatenate(mine, axis=axis), array), name
    projection = "model.layers.0.self_attn.q_proj.weight"
    assert 2 * parts[0][projection].size == whole[projection].size


@pytest.mark.parametrize("rank", [0, 1])
def test_a_part_is_refused_if_it_does_not_fit_and_only_rank_0_shows_how_it_is_read(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mlxgen.progress.LINES_APART", 0)
    some = [mx.zeros((1000, 1000)), mx.zeros((1000, 500))]
    assert list(_reading("tiny", rank, False, some)) == some
    lines = ["weights: 0.00 GB of 0.01 GB", "weights: 0.01 GB of 0.01 GB"]
    assert capsys.readouterr().err.splitlines() == ([] if rank else lines)
    monkeypatch.setattr("mlxgen.loading.memory.memory_limit", lambda: (10_000, "this machine has"))
    with pytest.raises(mlxgen.MemoryLimitError, match=r"this machine's part of tiny need 0.01 GB"):
        _reading("tiny", rank, False, some)
    assert _reading("tiny", 1, True, some) == some


def test_a_terminal_shows_a_bar_of_what_is_read() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    some = [mx.zeros((1000, 1000)), mx.zeros((500, 500))]
    assert list(reading(some, screen)) == some
    assert "5.0/5.0 MB" in cast(io.StringIO, screen.file).getvalue()


@pytest.mark.parametrize("leads", [True, False])
def test_only_rank_0_shows_how_files_are_fetched(
    leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines: Any = SimpleNamespace(leads=leads)
    hidden: list[bool] = []
    monkeypatch.setattr("mlxgen.machines.group.Group.launched", lambda: True)
    monkeypatch.setattr("mlxgen.machines.machines.Machines.here", lambda: machines)
    monkeypatch.setattr("mlxgen.machines.following.Follower.serve", lambda self: None)
    monkeypatch.setattr(hub, "disable_progress_bars", lambda: hidden.append(True))
    assert join() is machines
    assert hidden == ([] if leads else [True])


# ---- layers ----


def test_a_part_of_the_layers_needs_only_the_files_of_these(tmp_path: Path) -> None:
    folder = write_random(tmp_path / "model", "qwen3_next", files=4)
    split = [part_of(Raw(rank, 2), adapter=False)(folder) or () for rank in range(2)]
    # The last layers are those of rank 0; embeddings and head are in the first file
    assert [sorted(each) for each in split] == [
        ["model-0.safetensors", "model-2.safetensors", "model-3.safetensors"],
        ["model-0.safetensors", "model-1.safetensors"],
    ]
    assert part_of(Raw(1, 2), adapter=True)(folder) is None, "an adapter is for all layers"


def test_layers_are_loaded_without_the_files_of_others(tmp_path: Path) -> None:
    folder = write_random(tmp_path / "model", "qwen3_next", files=4)
    for number in (2, 3):
        (folder / f"model-{number}.safetensors").unlink()
    group = Raw(1, 2)
    with pytest.raises(mlxgen.WeightsError, match=r"lacks model-2.safetensors and 1 more"):
        part(folder)
    source = Checkpoint.open(folder, part_of(group, adapter=False))
    model = part(source, group)
    (folder / "model-2.safetensors").write_bytes(b"half of a download")
    assert Checkpoint.open(folder, part_of(group, adapter=False)) == source
    assert len(model.layers) == 2
    assert source.nbytes >= sum(
        array.nbytes for array in arrays(model).values() if array is not None
    )
    assert "load_weights" not in vars(model)


def test_a_missing_tensor_of_ones_own_layers_is_an_error(tmp_path: Path) -> None:
    folder = write_random(tmp_path / "model", "qwen3_next", files=4)
    change(folder, "lose", ["model-1.safetensors", "layers.1.input_layernorm.weight"])
    part(folder, Raw(0, 2))
    with pytest.raises(
        mlxgen.WeightsError, match=r"Missing 1 parameters.*layers.1.input_layernorm"
    ):
        part(folder, Raw(1, 2))


def test_a_prediction_head_after_the_layers_is_no_layer_of_any_part(tmp_path: Path) -> None:
    folder = write_random(tmp_path / "model", "deepseek_v3")
    head = {"model.layers.2.eh_proj.weight": mx.zeros((64, 128)), "model.layers.2.up": mx.zeros(1)}
    mx.save_safetensors(str(folder / "model-head.safetensors"), head)
    assert len(part(folder, Raw(1, 2)).layers) == 2


def test_an_adapter_is_added_to_the_weights_before_they_are_cut(
    pristine: Path, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "adapter", pristine)
    name = "model.layers.1.self_attn.q_proj"
    layer = dict(part(pristine, adapter=adapter).named_modules())[name]
    fused = layer.fuse().weight
    mine = [arrays(part(pristine, Raw(r, 2), adapter=adapter))[f"{name}.weight"] for r in (0, 1)]
    assert mx.allclose(mx.concatenate(mine), fused)
    assert not mx.allclose(fused, layer.linear.weight)


def test_an_adapter_for_quantised_weights_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", change=quantised)
    adapter = write_adapter(tmp_path / "adapter", folder)
    with pytest.raises(mlxgen.AdapterError, match=r"quantised weights of a model on several.*fuse"):
        part(folder, Raw(0, 2), adapter=adapter)


# ---- which model a folder holds ----

MODEL = Path(__file__).parents[2] / "mlxgen" / "demo" / "model"


def test_a_model_is_another_if_a_file_changed_that_decides_what_it_computes(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(MODEL, tmp_path / "copy"))
    os.utime(copy / "config.json", (0, 0))
    (copy / "tokenizer_config.json").write_text("{}")
    known = fingerprint(MODEL)
    assert fingerprint(copy) == known and {"config.json", "model.safetensors"} <= known.keys()
    for name in ("config.json", "model.safetensors", "model.py"):
        file = copy / name
        data = bytearray(file.read_bytes() if file.exists() else b"a = 1")
        for place in range(len(data) // 2, len(data), 100):  # the size and the header stay
            data[place] ^= 1
        file.write_bytes(data)
        differing = fingerprint(copy).items() - known.items()
        assert [key for key, _ in differing] == [name]
        known = fingerprint(copy)
