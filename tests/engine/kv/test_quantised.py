"""Quantised KV: what is held of each token, and which models can do with it."""

from __future__ import annotations

import importlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache

import mlxgen
from mlxgen import LanguageModel, LoadError, OptionError, load
from mlxgen.arguments import OneModel, load_model
from mlxgen.engine.kv.layers import leaves
from mlxgen.engine.kv.quantised import Quantisation, QuantisedKeys
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import VOCAB, random_model

BITS = (2, 3, 4, 5, 6, 8)
GIVEN = (5, 300, 1)  # tokens of three passes


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


def fed(how: Quantisation, width: int) -> tuple[QuantisedKeys, mx.array]:
    """A cache after three passes, and the keys of these; its values are the same backwards."""
    cache, given = QuantisedKeys(how), mx.random.normal((1, 2, sum(GIVEN), width))
    starts = np.cumsum((0, *GIVEN)).tolist()
    for start, stop in pairwise(starts):
        part = given[:, :, start:stop]
        cache.update_and_fetch(part, part[..., ::-1])
    return cache, given


def through(how: Quantisation, array: mx.array) -> mx.array:
    """What is left of keys that went through a cache."""
    if how.start >= array.shape[2]:
        return array
    parts = mx.quantize(array[:, :, how.start :], group_size=how.group_size, bits=how.bits)
    later = mx.dequantize(*parts, group_size=how.group_size, bits=how.bits)
    return mx.concatenate([array[:, :, : how.start], later], axis=2)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width, size", [(32, 32), (96, 32), (128, 64), (128, 128), (576, 64)])
def test_each_token_is_quantised_by_itself(bits: int, size: int, width: int) -> None:
    how = Quantisation(bits, size)
    cache, given = fed(how, width)
    keys, values = cache.keys_and_values()
    assert mx.array_equal(keys, through(how, given))
    assert mx.array_equal(values, through(how, given[..., ::-1]))


@pytest.mark.parametrize("start", [1, 5, 7, 305, 400])
def test_the_first_tokens_stay_as_they_are(start: int) -> None:
    how = Quantisation(4, 32, start)
    cache, given = fed(how, 64)
    keys, values = cache.keys_and_values()
    assert mx.array_equal(keys, through(how, given))
    assert mx.array_equal(values, through(how, given[..., ::-1]))
    held = [array.shape[2] for array in cache.places.held(cache.offset)]
    assert held == [306] * 6 + [min(start, 306)] * 2


def test_single_tokens_may_look_at_packed_keys_and_longer_runs_get_floats() -> None:
    cache, given = QuantisedKeys(Quantisation(8, 32, packed=True)), mx.ones((1, 1, 3, 32))
    for count, packed in ((3, False), (1, True), (2, False)):
        keys, _ = cache.update_and_fetch(given[:, :, :count], given[:, :, :count])
        assert isinstance(keys, tuple) == hasattr(cache, "bits") == packed


@pytest.mark.parametrize("bits", BITS)
def test_a_model_with_heads_of_128_generates_with_any_number_of_bits(bits: int) -> None:
    lm = LanguageModel(wide(128), alphabet_tokenizer(), kv_bits=bits)
    stream = lm.stream([1, 2, 3, 4], max_tokens=12)
    whole = [chunk.token for chunk in stream]
    stream.rewind(tokens=7)
    assert [*stream.tokens, *(chunk.token for chunk in stream)] == whole


# ---- models


PACKED = {"llama": True, "gpt_oss": False, "deepseek_v3": False, "baichuan_m1": True}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("start", [0, 3])
def test_any_attention_can_look_at_quantised_keys(name: str, start: int) -> None:
    """Attention sinks, latent attention, and lists of caches, alone and in a batch."""
    model = random_model(name)
    lm = LanguageModel(
        model, alphabet_tokenizer(), kv_bits=8, kv_group_size=32, kv_quant_start=start
    )
    found = [leaf for leaf in leaves(lm.runtime.make_cache()) if isinstance(leaf, QuantisedKeys)]
    assert found and all(leaf.how.packed == (PACKED[name] and not start) for leaf in found)
    plain = LanguageModel(model, alphabet_tokenizer())
    tokens = mx.array([[i % VOCAB for i in range(1, 12)]])
    caches, exact = lm.runtime.make_cache(), plain.runtime.make_cache()
    for part in (tokens[:, :9], tokens[:, 9:10], tokens[:, 10:]):
        got, expected = (np.array(model(part, cache=each)) for each in (caches, exact))
        assert np.abs(got - expected).max() < 0.1 * np.ptp(expected)
    assert lm.runtime.batches == plain.runtime.batches


def test_windows_and_states_stay_as_they_are() -> None:
    caches = Quantisation(8, 64).applied([KVCache(), RotatingKVCache(16), CacheList(KVCache())])
    kinds = [type(leaf) for leaf in leaves(caches)]
    assert kinds == [QuantisedKeys, RotatingKVCache, QuantisedKeys]
    with pytest.raises(OptionError, match="kv_bits: mamba has no layer to quantise"):
        LanguageModel(random_model("mamba"), alphabet_tokenizer(), kv_bits=8)


@pytest.mark.parametrize("width, size", [(64, 64), (96, 32), (128, 64)])
def test_the_group_size_is_one_that_divides_the_head_dimension(width: int, size: int) -> None:
    lm = LanguageModel(wide(width), alphabet_tokenizer(), kv_bits=8)
    assert lm.runtime.make_cache()[0].how == Quantisation(8, size, packed=True)


def test_what_cannot_be_quantised_is_refused_before_anything_runs() -> None:
    with pytest.raises(
        OptionError, match=r"kv_group_size: expected a divisor of .* llama, 96, got 64"
    ):
        LanguageModel(wide(96), alphabet_tokenizer(), kv_bits=4, kv_group_size=64)
    with pytest.raises(
        OptionError, match=r"kv_group_size: expected a divisor of .* llama, 80, got 64"
    ):
        LanguageModel(wide(80), alphabet_tokenizer(), kv_bits=4)

    class Reading(type(random_model("llama"))):  # type: ignore[misc]
        def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
            logits: mx.array = super().__call__(inputs, cache=cache) + cache[0].keys[0, 0, 0, 0]
            return logits

    model = wide(64)
    model.__class__ = Reading
    with pytest.raises(OptionError, match=r"kv_bits: .* cannot run .* indices"):
        LanguageModel(model, alphabet_tokenizer(), kv_bits=4)


@pytest.mark.parametrize("bits", [None, 8])
def test_a_model_may_make_the_keys_of_its_caches_depend_on_what_it_computes(
    bits: int | None,
) -> None:
    class Tying(type(random_model("llama"))):  # type: ignore[misc]
        def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
            logits: mx.array = super().__call__(inputs, cache=cache)
            cache[-1].keys = mx.depends(cache[-1].keys, [logits + 1, cache[0].keys])
            return logits

    model = wide(64)
    whole = LanguageModel(model, alphabet_tokenizer(), kv_bits=bits)
    expected = whole.generate([1, 2, 3], max_tokens=20, temperature=0).tokens
    model.__class__ = Tying
    lm = LanguageModel(model, alphabet_tokenizer(), kv_bits=bits)
    assert lm.runtime.batches
    assert lm.generate([1, 2, 3], max_tokens=20, temperature=0).tokens == expected


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kv_bits": 7}, "kv_bits: expected 2, 3, 4, 5, 6 or 8, got 7"),
        ({"kv_bits": True}, "kv_bits: expected 2, 3, 4, 5, 6 or 8, got True"),
        ({"kv_bits": 8, "kv_group_size": 48}, "kv_group_size: expected 32, 64 or 128, got 48"),
        ({"kv_bits": 8, "kv_quant_start": -1}, "kv_quant_start: expected an integer from 0"),
        ({"kv_group_size": 64}, "kv_group_size: has no effect without kv_bits"),
        ({"kv_quant_start": 64}, "kv_quant_start: has no effect without kv_bits"),
    ],
)
def test_wrong_values_are_refused_before_a_model_is_looked_for(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        load("/nowhere", **options)
    with pytest.raises(OptionError, match=message):
        LanguageModel(None, None, **options)


def test_a_model_that_a_command_loads_and_its_draft_are_quantised_alike(
    demo: LanguageModel,
) -> None:
    draft = Path(mlxgen.__file__).parent / "demo" / "draft"
    settings = OneModel(draft=str(draft), kv_bits=4)
    lm = load_model(None, settings, adapter=None, kv_quant_start=8)
    for each in (lm, lm.draft):
        assert each.runtime.make_cache()[0].how == Quantisation(4, 32, 8)
    assert lm.runtime.footprint.growing < 0.4 * demo.runtime.footprint.growing


# ---- generations


TEXTS = [
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time there was a fox who liked to play in the snow with",
    "Lily",
]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}


def quantised(demo: LanguageModel, bits: int, start: int) -> LanguageModel:
    return LanguageModel(demo.model, demo.tokenizer, kv_bits=bits, kv_quant_start=start)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "bits, start",
    [(8, 0), (4, 20), pytest.param(4, 0, marks=SLOW), pytest.param(8, 20, marks=SLOW)],
)
def test_every_way_to_generate_gives_what_a_fresh_run_gives(
    demo: LanguageModel, bits: int, start: int, tmp_path: Path
) -> None:
    lm = quantised(demo, bits, start)
    fresh = [list(lm.generate(text, **GREEDY).tokens) for text in TEXTS]

    together: list[list[int | None]] = [[] for _ in TEXTS]
    with lm.batch(TEXTS, **GREEDY) as batch:
        for index, chunk in batch:
            together[index].append(chunk.token)
    assert together == fresh
    assert lm.prefix_cache.nbytes > 0
    for text, tokens in zip(TEXTS, fresh, strict=True):
        assert list(lm.generate(text, draft="ngram", **GREEDY).tokens) == tokens
        ids = [*lm.tokenizer.encode(text), *tokens]
        for cut in range(1, len(tokens), 4):  # before and after the place where quantising starts
            more = {**GREEDY, "max_tokens": len(tokens) - cut}
            assert list(lm.generate(ids[: cut - len(tokens)], **more).tokens) == tokens[cut:]

    with lm.stream(TEXTS[1], **GREEDY) as stream:
        for _ in range(10):
            next(stream)
        (twin,) = stream.fork(1)
        stream.rewind(tokens=8)
        for one in (twin, stream):
            assert [*one.tokens, *(chunk.token for chunk in one)] == fresh[1]

    path = tmp_path / "prefix"
    count = lm.save_prefix(TEXTS[1], path)
    other = quantised(demo, bits, start)
    assert other.load_prefix(path) == count
    assert list(other.generate(TEXTS[1], **GREEDY).tokens) == fresh[1]
    with pytest.raises(LoadError, match=f"start={start}.* start={start + 1}"):
        quantised(demo, bits, start + 1).load_prefix(path)
