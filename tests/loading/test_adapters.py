"""Adapters beside the model that they were trained for, which shares its weights with them."""

from __future__ import annotations

import gc
import json
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MethodType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils
import pytest

import mlxgen
from mlxgen.loading import memory
from mlxgen.loading.adapter import adapted

from ..fakes.architectures import random_model
from ..fakes.checkpoints import arrays, tiny_model, write_adapter, write_adapter_of
from ..fakes.tokenizers import byte_level_tokenizer

TOKENS = mx.array([[1, 2, 3, 4]])
LORA = {"rank": 2, "scale": 1.5, "dropout": 0.1}


@pytest.fixture(scope="module")
def poet(pristine: Path) -> Path:
    trained = tiny_model(json.loads((pristine / "config.json").read_text()))
    return write_adapter_of(trained, pristine.parent / "poet", lora=LORA)


def values(model: nn.Module) -> dict[str, int]:
    """Which arrays a model has."""
    return {name: id(array) for name, array in arrays(model).items()}


def logits(model: Any) -> mx.array:
    found: mx.array = model(TOKENS)
    return found


# ---- what it is ----


@pytest.mark.parametrize(
    ("name", "kind", "bits"),
    [
        ("llama", "lora", None),
        ("llama", "dora", None),
        ("llama", "full", None),
        ("llama", "lora", 4),
        ("llama", "dora", 4),
        ("gemma3_text", "lora", None),
        ("qwen3_next", "lora", None),
        ("llama4", "lora", None),  # of experts
    ],
)
def test_the_copy_is_what_mlx_lm_makes_and_the_model_stays_as_it_is(
    name: str, kind: str, bits: int | None, tmp_path: Path
) -> None:
    """It takes no memory but the adapter's: all else are the arrays of the model."""
    model, other, trained = (random_model(name).eval() for _ in range(3))
    for each in (model, other, trained):
        if bits is not None:
            nn.quantize(each, group_size=32, bits=bits)
    folder = write_adapter_of(trained, tmp_path / "adapter", kind=kind, lora=LORA)
    plain, had = logits(model), values(model)
    twin = adapted(model, folder)
    expected = logits(mlx_lm.utils.load_adapters(other, str(folder)).eval())
    assert mx.allclose(logits(twin), expected, atol=1e-5).item()
    assert not mx.allclose(plain, expected, atol=1e-2).item()
    assert values(model) == had
    assert mx.allclose(logits(model), plain, atol=1e-5).item()
    replaced = set(had.values()) - set(values(twin).values())
    assert len(replaced) == (len(arrays(trained.layers[-1])) if kind == "full" else 0)


def test_methods_that_a_module_holds_are_those_of_the_copy(tmp_path: Path) -> None:
    model, trained = random_model("llama"), random_model("llama")
    folder = write_adapter_of(trained, tmp_path / "adapter", lora=LORA)
    layer = model.layers[-1]
    layer.kept = layer.__call__
    layer.compiled = mx.compile(layer.mlp.__call__)
    layer.activation = nn.silu
    twin = adapted(model, folder).layers[-1]
    assert twin.compiled.__self__ is twin.mlp and layer.compiled.__self__ is layer.mlp
    assert twin.activation is nn.silu
    assert isinstance(twin.kept, MethodType)
    assert twin.kept.__self__ is twin and layer.kept.__self__ is layer


# ---- the language model ----


def test_a_variant_has_all_of_the_models_settings_and_caches_of_its_own(tmp_path: Path) -> None:
    poet = write_adapter_of(random_model("llama"), tmp_path / "poet", lora=LORA)
    given: dict[str, Any] = {"max_context": 500, "cache_bytes": 1 << 28, "draft": "ngram"}
    given |= {"kv_bits": 8, "kv_group_size": 32, "recommended": {"temperature": 0.5}}
    lm = mlxgen.LanguageModel(random_model("llama"), byte_level_tokenizer(), name="base", **given)
    _ = lm.prefix_cache, lm.runtime.pace, lm.memory, lm.runtime.sampler, lm.runtime._earlier
    variant = lm.with_adapter(poet)
    for name in ("tokenizer", "vocabulary", "config", "recommended", "max_context", "draft"):
        assert getattr(variant, name) is getattr(lm, name)
    assert variant.memory.caches == 1 << 28
    assert [type(cache).__name__ for cache in variant.runtime.make_cache()] == ["Keys"] * 2
    for name in ("prefix_cache", "pace", "_earlier"):
        assert getattr(variant.runtime, name) is not getattr(lm.runtime, name)
    assert variant.runtime.footprint.weights > lm.runtime.footprint.weights
    bard = lm.with_adapter(poet, name="bard")
    assert (variant.name, bard.name) == ("base:poet", "bard")
    gone = weakref.ref(bard.model)
    del bard
    gc.collect()
    assert gone() is None


def test_nobody_takes_a_prefix_that_ran_through_other_weights(
    pristine: Path, poet: Path, tmp_path: Path
) -> None:
    lm = mlxgen.load(pristine)
    variant = lm.with_adapter(poet)
    prompt = [1, 2, 3] * 20
    expected = mlxgen.load(pristine, adapter=poet).generate(prompt, max_tokens=8).tokens
    for each in (lm, variant):
        each.prefix_cache.clear()
        stream = each.stream(prompt, max_tokens=8)
        tokens = [chunk.token for chunk in stream]
        stream.keep()
        assert stream.usage.cached_tokens == 0
    assert tuple(tokens) == expected != lm.generate(prompt, max_tokens=8).tokens
    lm.save_prefix(prompt, tmp_path / "prefix.safetensors")
    with pytest.raises(mlxgen.LoadError, match="another model"):
        variant.load_prefix(tmp_path / "prefix.safetensors")


def test_both_generate_at_the_same_time_in_threads_of_their_own(pristine: Path, poet: Path) -> None:
    lm = mlxgen.load(pristine)
    both = [lm, lm.with_adapter(poet)]
    alone = [each.generate([5, 6, 7], max_tokens=40).tokens for each in both]

    def run(each: mlxgen.LanguageModel) -> list[tuple[int, ...]]:
        found = [each.generate([5, 6, 7], max_tokens=40).tokens for _ in range(3)]
        mx.clear_streams()
        return found

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, both)) == [[tokens] * 3 for tokens in alone]


# ---- what is refused ----


def test_what_does_not_fit_is_refused_by_its_path_and_leaves_nothing(
    pristine: Path, poet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = mlxgen.load(pristine)
    had, plain, active = values(lm.model), logits(lm.model), mx.get_active_memory()
    wide = write_adapter(tmp_path / "wide", pristine, width=64)
    for folder, said in ((wide, "does not fit"), (tmp_path / "none", "no adapter folder")):
        with pytest.raises(mlxgen.AdapterError, match=said) as caught:
            lm.with_adapter(folder)
        assert str(folder) in str(caught.value)
    with pytest.raises(mlxgen.AdapterError, match="has an adapter already"):
        lm.with_adapter(poet).with_adapter(poet)
    with monkeypatch.context() as small:
        small.setattr(memory, "memory_limit", lambda: (10, "this machine has"))
        with pytest.raises(mlxgen.MemoryLimitError, match=r"poet need .* this machine has"):
            lm.with_adapter(poet)
        assert lm.with_adapter(poet, ignore_memory_limit=True).name == "tiny-llama:poet"
    del caught
    assert values(lm.model) == had
    assert mx.allclose(logits(lm.model), plain, atol=1e-6).item()
    assert mx.get_active_memory() <= active + (1 << 14)


def test_a_model_that_is_wired_is_wired_with_its_adapter(
    pristine: Path, poet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wired: list[int] = []
    monkeypatch.setattr("mlxgen.engine.runtime.wirable", lambda: 1 << 40)
    monkeypatch.setattr(mx, "set_wired_limit", wired.append)
    lm = mlxgen.load(pristine, wired_limit=None)
    lm.with_adapter(poet)
    assert not wired
    lm.runtime.wire()
    variant = lm.with_adapter(poet)
    assert wired == [lm.memory.wired, variant.memory.wired] and all(wired)
