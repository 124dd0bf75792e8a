"""Multi-token-prediction heads: each published layout is read as its makers describe it."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

import mlxgen
from mlxgen.load import weights_of

from ..fakes.checkpoints import arrays, write_adapter_of
from ..fakes.tokenizers import byte_level_tokenizer
from ..tables import table
from .conftest import change

WIDTH, LAYERS, EPS = 64, 2, 1e-5
Tensors = dict[str, mx.array]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One that publishes heads: what they are called, and how they compute. Its ``config`` is of
    ``LAYERS`` layers of this ``WIDTH``."""

    family: str
    layer: str
    names: Mapping[str, str]
    config: Mapping[str, Any]
    indexed: bool = True  # its layers are told which they are
    at: int = LAYERS
    state_first: bool = False
    raw: bool = False
    centred: bool = False
    nested: bool = False
    home: str | None = None  # the module of the layer, if it is of another model's


FAMILIES = {each["family"]: Family(**each) for each in table("heads")}


class Made:
    """A model of a family and its head, as the parts that its makers describe."""

    def __init__(self, name: str) -> None:
        mx.random.seed(3)
        self.name, self.family = name, FAMILIES[name]
        tokenizer = byte_level_tokenizer()
        text = {**self.family.config, "model_type": name, "vocab_size": len(tokenizer)}
        self.config: dict[str, Any] = text
        if self.family.nested:
            self.config = {"model_type": name, "text_config": text}
        module = importlib.import_module(f"mlx_lm.models.{name}")
        home = importlib.import_module(f"mlx_lm.models.{self.family.home or name}")
        arguments = (home.TextModelArgs if self.family.nested else module.ModelArgs).from_dict(text)
        self.model = module.Model(module.ModelArgs.from_dict(self.config))
        at = (self.family.at,) if self.family.indexed else ()
        self.layer: nn.Module = getattr(home, self.family.layer)(arguments, *at)
        self.projection = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        for part in (self.model, self.layer):
            part.set_dtype(mx.float32)
            for norm in part.modules():
                if isinstance(norm, nn.RMSNorm):
                    norm.weight = mx.random.uniform(0.3, 0.9, norm.weight.shape)
        self.norms = {each: mx.random.uniform(0.3, 0.9, (WIDTH,)) for each in ("token", "state")}
        self.norms["last"] = mx.random.uniform(0.3, 0.9, (WIDTH,))
        self.text = getattr(self.model, "language_model", self.model)
        if self.family.raw:
            self.norms["last"] = self.text.model.norm.weight

    def head(self) -> Tensors:
        """The head's tensors by its makers' names."""
        names, family = self.family.names, self.family
        block = arrays(self.layer)
        found = {f"{names['block']}.{name}": array for name, array in block.items()}
        found |= {f"{names['projection']}.{k}": v for k, v in arrays(self.projection).items()}
        found[f"{names['token_norm']}.weight"] = self.norms["token"]
        found[f"{names['state_norm']}.weight"] = self.norms["state"]
        if "norm" in names:
            found[f"{names['norm']}.weight"] = self.norms["last"]
        if "shared_head" in names.get("norm", "") and self.name != "llama":
            # What is the model's is published again
            wide = mx.zeros((self.config["vocab_size"], WIDTH))
            found[f"{names['block']}.embed_tokens.weight"] = wide
            found[f"{names['block']}.shared_head.head.weight"] = wide
        return published(found, self.config, centred=family.centred)

    def trunk(self) -> Tensors:
        """The model's tensors by its makers' names."""
        found = arrays(self.model)
        if self.family.nested:
            found = {
                name.replace("language_model.model.", "model.language_model.").replace(
                    "language_model.lm_head", "lm_head"
                ): array
                for name, array in found.items()
            }
        return published(found, self.config, centred=self.family.centred)

    def expected(self, tokens: mx.array, states: mx.array) -> mx.array:
        """What the head says comes next, by the published formula; ``states`` are of the last
        layer, as the head wants them."""
        token = normed(self.text.model.embed_tokens(tokens), self.norms["token"])
        state = normed(states, self.norms["state"])
        pair = [state, token] if self.family.state_first else [token, state]
        count = tokens.shape[1]
        mask = mx.tril(mx.ones((count, count), dtype=mx.bool_))
        made = self.layer(self.projection(mx.concatenate(pair, axis=-1)), mask)
        logits: mx.array = self.text.lm_head(normed(made, self.norms["last"]))
        return logits

    def write(self, folder: Path, files: Mapping[str, Tensors]) -> Path:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config))
        byte_level_tokenizer().save_pretrained(folder)
        for name, tensors in files.items():
            mx.save_safetensors(str(folder / name), tensors)
        return folder


def normed(values: mx.array, weight: mx.array) -> mx.array:
    return values * mx.rsqrt(values.square().mean(axis=-1, keepdims=True) + EPS) * weight


def published(tensors: Tensors, config: Mapping[str, Any], *, centred: bool) -> Tensors:
    """What mlx-lm calls so, as its makers publish it: expert by expert, with the latent keys and
    values in one, and norms less one."""
    found: Tensors = {}
    for name, array in tensors.items():
        if ".switch_mlp." in name:
            for i, expert in enumerate(array):
                found[name.replace("switch_mlp", f"experts.{i}")] = expert
        elif name.endswith("embed_q.weight"):
            values = tensors[name.replace("embed_q", "unembed_out")]
            both = mx.concatenate([array.swapaxes(-1, -2), values], axis=1)
            found[name.replace("embed_q", "kv_b_proj")] = both.reshape(-1, both.shape[-1])
        elif name.endswith("unembed_out.weight"):
            pass
        elif name.endswith("conv1d.weight"):
            found[name] = array.moveaxis(2, 1)
        elif centred and re.search(r"norm(_\w+)?\.weight$", name) and "linear_attn" not in name:
            found[name] = array - 1
        else:
            found[name] = array
    if config["model_type"] == "qwen3_5_moe":
        return fused(found)
    return found


def fused(tensors: Tensors) -> Tensors:
    """With the experts of each layer in one, as in Qwen3.5; those of a head are not."""
    found = {k: v for k, v in tensors.items() if ".experts." not in k or k.startswith("mtp.")}
    starts = {name.split(".experts.")[0] for name in tensors if name not in found}
    for start in starts:
        made: dict[str, list[mx.array]] = {}
        for i in range(4):
            for part in ("gate_proj", "up_proj", "down_proj"):
                made.setdefault(part, []).append(tensors[f"{start}.experts.{i}.{part}.weight"])
        gate, up, down = (mx.stack(each) for each in made.values())
        found[f"{start}.experts.gate_up_proj"] = mx.concatenate([gate, up], axis=1)
        found[f"{start}.experts.down_proj"] = down
    return found


def check(lm: mlxgen.LanguageModel, made: Made, tolerance: float = 1e-4) -> None:
    """The head computes what the formula says, all tokens at once, and one by one."""
    predictor = lm.runtime.predictor
    assert predictor is not None
    tokens = mx.random.randint(0, 90, (2, 5))
    states = mx.random.normal((2, 5, WIDTH))
    given = normed(states, made.text.model.norm.weight) if made.family.raw else states
    expected = made.expected(tokens, states)
    at_once = predictor.logits(predictor(tokens, given, predictor.make_cache()))
    assert mx.allclose(at_once, expected, atol=tolerance).item()
    cache, steps = predictor.make_cache(), []
    for i in range(5):
        made_now = predictor(tokens[:, i : i + 1], given[:, i : i + 1], cache)
        steps.append(predictor.logits(made_now))
    assert mx.allclose(mx.concatenate(steps, axis=1), expected, atol=tolerance).item()
    assert made_now.shape[-1] == predictor.width == WIDTH


def files(made: Made) -> dict[str, Tensors]:
    """The files of a checkpoint; mlx-lm knows no heads of Llamas, so theirs are in one apart."""
    if made.name == "llama":
        return {"model.safetensors": made.trunk(), "mtp.safetensors": made.head()}
    return {"model.safetensors": {**made.trunk(), **made.head()}}


# ---- how it is kept ----


def quantised(made: Made, bits: int = 4, *, head: int | None = None) -> dict[str, Tensors]:
    """Files in which the model is stored with so many bits, and so is the ``head``, if at all."""
    made.config["quantization"] = {"group_size": 32, "bits": bits}
    nn.quantize(made.model, 32, bits)
    before = made.head()
    nn.quantize(made.layer, 32, head or bits)
    made.projection = made.projection.to_quantized(32, head or bits)
    after = before if head is None else made.head()
    return {"model.safetensors": arrays(made.model), "mtp.safetensors": after}


def quantised_otherwise(made: Made) -> dict[str, Tensors]:
    """The head has other bits than the model, of which one layer has bits of its own."""
    whole = quantised(made, head=8)
    made.config["quantization"]["model.layers.0.mlp.up_proj"] = {"group_size": 32, "bits": 4}
    return whole


def in_fp8(made: Made) -> dict[str, Tensors]:
    kept = made.layer.self_attn.o_proj.weight.astype(mx.bfloat16)
    whole = files(made)
    stored, name = mx.to_fp8(kept), "model.layers.2.self_attn.o_proj.weight"
    whole["model.safetensors"] |= {name: stored, f"{name}_scale_inv": mx.full((1, 1), 0.5)}
    made.layer.self_attn.o_proj.weight = mx.from_fp8(stored, dtype=mx.float32) * 0.5
    return whole


def converted(made: Made) -> dict[str, Tensors]:
    """With the model, so that the norms were converted, too."""
    head = {name: each + 1 if "norm" in name else each for name, each in made.head().items()}
    prefixed = {f"language_model.{name}": array for name, array in head.items()}
    return {"model.safetensors": {**arrays(made.model), **prefixed}}


def beside(made: Made) -> dict[str, Tensors]:
    """The head as it was published, beside a model that was converted."""
    return {"model.safetensors": arrays(made.model), "mtp.safetensors": made.head()}


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        *((files, name) for name in FAMILIES),
        (quantised, "llama"),
        pytest.param(quantised, "deepseek_v3", marks=pytest.mark.slow),
        pytest.param(quantised, "qwen3_5", marks=pytest.mark.slow),
        pytest.param(quantised_otherwise, "llama", marks=pytest.mark.slow),
        pytest.param(in_fp8, "deepseek_v3", marks=pytest.mark.slow),
        (converted, "qwen3_5"),
        (beside, "qwen3_5"),
    ],
)
def test_a_head_computes_what_its_makers_describe_however_it_is_stored(
    stored: Callable[[Made], dict[str, Tensors]], name: str, tmp_path: Path
) -> None:
    made = Made(name)
    lm = mlxgen.load(made.write(tmp_path / "model", stored(made)))
    tokens, tolerance = mx.array([[1, 2, 3]]), 1e-3 if "quantization" in made.config else 1e-4
    check(lm, made, tolerance)
    assert mx.allclose(lm.model(tokens), made.model(tokens), atol=tolerance).item()
    assert lm.runtime.predictor is not None
    parts = (*arrays(made.layer).values(), *arrays(made.projection).values(), *made.norms.values())
    if stored is quantised:  # like its model
        assert lm.runtime.predictor.nbytes == sum(array.nbytes for array in parts)


@pytest.mark.slow
def test_numbers_of_another_width_are_turned_into_the_model_s(tmp_path: Path) -> None:
    made = Made("llama")
    made.model.set_dtype(mx.float16)
    head = {name: array.astype(mx.bfloat16) for name, array in made.head().items()}
    whole = {"model.safetensors": made.trunk(), "mtp.safetensors": head}
    predictor = mlxgen.load(made.write(tmp_path / "model", whole)).runtime.predictor
    assert predictor is not None
    states = mx.zeros((1, 3, WIDTH), dtype=mx.float16)
    assert predictor(mx.array([[1, 2, 3]]), states, predictor.make_cache()).dtype == mx.float16


# ---- what it costs, and who has it ----


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Made("llama")
    return made.write(tmp_path_factory.mktemp("models") / "model", files(made))


def test_the_bytes_of_a_head_count(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = sum(array.nbytes for array in Made("llama").head().values())
    lm = mlxgen.load(llama)
    assert lm.runtime.weight_bytes == lm.runtime.footprint.weights + head
    assert lm.memory.weights >= lm.runtime.weight_bytes
    assert weights_of(llama) == lm.runtime.weight_bytes
    room = mx.get_active_memory() + lm.runtime.weight_bytes - 1
    monkeypatch.setattr("mlxgen.loading.memory.memory_limit", lambda: (room, "it has"))
    with pytest.raises(mlxgen.MemoryLimitError):
        mlxgen.load(llama)
    assert mlxgen.load(llama, draft="off").runtime.predictor is None


@pytest.mark.slow
def test_a_model_with_an_adapter_has_the_head_of_the_model(llama: Path, tmp_path: Path) -> None:
    lm = mlxgen.load(llama)
    adapter = write_adapter_of(Made("llama").model, tmp_path / "adapter")
    twin = lm.with_adapter(adapter)
    assert twin.runtime.predictor is lm.runtime.predictor is not None
    assert mlxgen.load(llama, adapter=adapter).runtime.predictor is not None


def test_a_draft_model_gets_no_head(llama: Path) -> None:
    lm = mlxgen.load(llama, draft=llama)
    assert lm.runtime.predictor is not None
    assert lm.draft.runtime.predictor is None


# ---- what does not fit ----


@pytest.mark.parametrize("case", table("changed_heads"), ids=lambda case: case["what"])
def test_a_model_is_loaded_without_a_head_that_does_not_fit(
    case: dict[str, Any], llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "model"))
    for verb, what in case["do"].items():
        change(folder, verb, what)
    lm = mlxgen.load(folder)
    assert lm.runtime.predictor is None
    (warning,) = (each.getMessage() for each in caplog.records)
    assert "the multi-token-prediction head" in warning and case["says"] in warning
    assert len(lm.generate("so", max_tokens=2, ignore_eos=True).tokens) == 2
