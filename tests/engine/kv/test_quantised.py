"""Quantised KV caches: every number of bits, head dimension and group size."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxgen import LanguageModel, OptionError
from mlxgen.engine.kv.quantised import QuantizedKVCache
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import random_model

BITS = (2, 3, 4, 5, 6, 8)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("width", [32, 64, 96, 128, 160, 192, 256, 512, 576])
def test_a_cache_holds_what_was_quantised(bits: int, size: int, width: int) -> None:
    cache: Any = QuantizedKVCache(size, bits)
    given = [mx.random.normal((1, 2, count, width)) for count in (5, 300, 1)]
    if width % size:
        with pytest.raises(OptionError, match=f"divisor of the model's head dimension {width}"):
            cache.update_and_fetch(given[0], given[0])
        return
    for part in given:
        keys, values = cache.update_and_fetch(part, part[..., ::-1])
    whole = mx.concatenate(given, axis=2)
    for found, expected in ((keys, whole), (values, whole[..., ::-1])):
        for one, other in zip(
            found, mx.quantize(expected, group_size=size, bits=bits), strict=True
        ):
            assert np.array_equal(np.array(one), np.array(other))


def wide(width: int) -> Any:
    """A model with heads of so many numbers."""
    module = importlib.import_module("mlx_lm.models.llama")
    arguments = random_model("llama").args
    arguments.head_dim = width
    model = module.Model(arguments)
    mx.eval(model.parameters())
    return model


@pytest.mark.parametrize("bits", BITS)
def test_a_model_with_heads_of_128_generates_with_any_number_of_bits(bits: int) -> None:
    lm = LanguageModel(wide(128), alphabet_tokenizer(), kv_bits=bits)
    stream = lm.stream([1, 2, 3, 4], max_tokens=12)
    whole = [chunk.token for chunk in stream]
    stream.rewind(tokens=7)
    assert [*stream.tokens, *(chunk.token for chunk in stream)] == whole


def test_what_cannot_be_quantised_is_refused_before_anything_runs() -> None:
    with pytest.raises(OptionError, match="kv_group_size: expected 32, 64 or 128, got 48"):
        LanguageModel(wide(96), alphabet_tokenizer(), kv_bits=4, kv_group_size=48)
    with pytest.raises(OptionError, match=r"kv_group_size: expected a divisor .* 96, got 64"):
        LanguageModel(wide(96), alphabet_tokenizer(), kv_bits=4)

    class Sinking(type(random_model("llama"))):  # type: ignore[misc]
        def __call__(self, *_: Any, **__: Any) -> mx.array:
            raise ValueError("Quantized SDPA does not support attention sinks.")

    model = wide(64)
    model.__class__ = Sinking
    with pytest.raises(OptionError, match=r"kv_bits: .* \(Quantized SDPA does not support"):
        LanguageModel(model, alphabet_tokenizer(), kv_bits=4)
