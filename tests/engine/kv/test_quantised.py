"""Quantised KV: what is held of each token, and which models can do with it."""

from __future__ import annotations

import importlib
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxgen
from mlxgen import LanguageModel, OptionError, load
from mlxgen.arguments import OneModel, load_model
from mlxgen.engine.kv.slot_caches import Keys, Pass, Quantisation
from mlxgen.engine.kv.slots import Group
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import VOCAB, random_model

BITS = (2, 3, 4, 5, 6, 8)


@pytest.fixture(scope="module")
def demo() -> LanguageModel:
    return load()


def wide(width: int) -> Any:
    """A model with heads of so many numbers."""
    module = importlib.import_module("mlx_lm.models.llama")
    arguments = random_model("llama").args
    arguments.head_dim = width
    model = module.Model(arguments)
    mx.eval(model.parameters())
    return model


def through(how: Quantisation, array: mx.array) -> mx.array:
    """What is left of keys that went through a cache."""
    if how.start >= array.shape[2]:
        return array
    parts = mx.quantize(array[:, :, how.start :], group_size=how.group_size, bits=how.bits)
    later = mx.dequantize(*parts, group_size=how.group_size, bits=how.bits)
    return mx.concatenate([array[:, :, : how.start], later], axis=2)


def one(cache: Keys, given: mx.array, first: int, last: int) -> Any:
    """Put some tokens' keys, and values that are those the other way round, into the one slot."""
    cache.step = Pass(0, [first], [True], held=1, count=last - first, rooms=1, reach=306)
    part = given[:, :, first:last]
    return cache.update_and_fetch(part, part[..., ::-1])


@pytest.mark.parametrize("bits", BITS)
def test_each_token_is_quantised_by_itself_and_the_first_ones_are_not(bits: int) -> None:
    for width, size, start in ((32, 32, 0), (96, 32, 7), (128, 128, 305), (64, 64, 1)):
        how = Quantisation(bits, size, start)
        cache, given = Keys(how=how), mx.random.normal((1, 2, 306, width))
        for first, last in pairwise((0, 5, 305, 306)):
            keys, values = one(cache, given, first, last)
        assert mx.array_equal(keys, through(how, given))
        assert mx.array_equal(values, through(how, given[..., ::-1]))
        held = [array.shape[2] for array in cache.run(slice(None), 0, 306)]
        assert held == [306] * 6 + [start] * (2 if start else 0)


def test_single_tokens_may_look_at_packed_keys_and_longer_runs_get_floats() -> None:
    cache, given = Keys(how=Quantisation(8, 32, packed=True)), mx.ones((1, 1, 6, 32))
    for first, last, packed in ((0, 3, False), (3, 4, True), (4, 6, False)):
        keys, _ = one(cache, given, first, last)
        assert isinstance(keys, tuple) == hasattr(cache, "bits") == packed


PACKED = {"llama": True, "gpt_oss": False, "deepseek_v3": False, "baichuan_m1": True}


@pytest.mark.parametrize("name", PACKED)
def test_any_attention_can_look_at_quantised_keys(name: str) -> None:
    """Attention sinks, latent attention, and lists of caches, alone and in a batch."""
    model, tokenizer = random_model(name), alphabet_tokenizer()
    plain = LanguageModel(model, tokenizer)
    tokens = mx.array([[i % VOCAB for i in range(1, 12)]])
    for start in (0, 3):
        lm = LanguageModel(model, tokenizer, kv_bits=8, kv_group_size=32, kv_quant_start=start)
        slots = [Group(each.runtime.make_cache).add(0) for each in (lm, plain)]
        keys = [layer for layer in slots[0].group.layers if isinstance(layer, Keys)]
        found = [layer.how for layer in keys if layer.how is not None]
        assert found and all(how.packed == (PACKED[name] and not start) for how in found)
        for part in (tokens[:, :9], tokens[:, 9:10], tokens[:, 10:]):
            got, expected = (np.array(each.forward(model, part)) for each in slots)
            assert np.abs(got - expected).max() < 0.1 * np.ptp(expected)
        assert lm.runtime.batches == plain.runtime.batches


@pytest.mark.parametrize("width, size", [(64, 64), (96, 32), (128, 64)])
def test_the_group_size_is_one_that_divides_the_head_dimension(width: int, size: int) -> None:
    lm = LanguageModel(wide(width), alphabet_tokenizer(), kv_bits=8)
    assert lm.runtime.make_cache()[0].how == Quantisation(8, size, packed=True)


def test_what_cannot_be_quantised_is_refused_before_anything_runs() -> None:
    class Reading(type(random_model("llama"))):  # type: ignore[misc]
        def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
            logits: mx.array = super().__call__(inputs, cache=cache) + cache[0].keys[0, 0, 0, 0]
            return logits

    reading = wide(64)
    reading.__class__ = Reading
    for model, size, field in (
        (random_model("mamba"), None, "kv_bits"),
        (wide(96), 64, "kv_group_size"),
        (wide(80), None, "kv_group_size"),
        (reading, None, "kv_bits"),
    ):
        with pytest.raises(OptionError) as error:
            LanguageModel(model, alphabet_tokenizer(), kv_bits=4, kv_group_size=size)
        assert error.value.field == field


@pytest.mark.parametrize(
    "options, field",
    [
        ({"kv_bits": 7}, "kv_bits"),
        ({"kv_bits": True}, "kv_bits"),
        ({"kv_bits": 8, "kv_group_size": 48}, "kv_group_size"),
        ({"kv_bits": 8, "kv_quant_start": -1}, "kv_quant_start"),
        ({"kv_group_size": 64}, "kv_group_size"),
        ({"kv_quant_start": 64}, "kv_quant_start"),
    ],
)
def test_wrong_values_are_refused_before_a_model_is_looked_for(
    options: dict[str, Any], field: str
) -> None:
    for refuses in (partial(load, "/nowhere"), partial(LanguageModel, None, None)):
        with pytest.raises(OptionError) as error:
            refuses(**options)
        assert error.value.field == field


@pytest.mark.parametrize("bits", [None, 8])
def test_a_model_may_make_the_keys_of_its_caches_depend_on_what_it_computes(
    bits: int | None,
) -> None:
    class Tying(type(random_model("llama"))):  # type: ignore[misc]
        def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
            logits: mx.array = super().__call__(inputs, cache=cache)
            cache[-1].keys = mx.depends(
                cache[-1].keys, [logits + 1, cache[0].keys, cache[0].values]
            )
            return logits

    model = wide(64)
    whole = LanguageModel(model, alphabet_tokenizer(), kv_bits=bits)
    expected = whole.generate([1, 2, 3], max_tokens=20, temperature=0).tokens
    model.__class__ = Tying
    lm = LanguageModel(model, alphabet_tokenizer(), kv_bits=bits)
    assert lm.runtime.batches
    assert lm.generate([1, 2, 3], max_tokens=20, temperature=0).tokens == expected


def test_a_model_that_a_command_loads_and_its_draft_are_quantised_alike(
    demo: LanguageModel,
) -> None:
    draft = Path(mlxgen.__file__).parent / "demo" / "draft"
    settings = OneModel(draft=str(draft), kv_bits=4)
    lm = load_model(None, settings, adapter=None, kv_quant_start=8)
    for each in (lm, lm.draft):
        assert each.runtime.make_cache()[0].how == Quantisation(4, 32, 8)
    assert lm.runtime.footprint.growing < 0.4 * demo.runtime.footprint.growing
