"""Every kind of cache that mlx-lm has, each with a small random model of a real architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.nn as nn
from benchmarks.architectures import VOCAB, random_model
from mlx_lm.models.cache import (
    ConcatenateKVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from mlxgen import LanguageModel
from mlxgen.engine.kv.slot_caches import Keys, Quantisation

from .tokenizers import alphabet_tokenizer

__all__ = ["KINDS", "SIDE_BY_SIDE", "VOCAB", "cache_kinds", "of_kind", "random_model"]

SIDE_BY_SIDE = ("plain", "quantised", "quantised later", "quantised by mlx-lm")
"""The kinds that can be cut anywhere."""


def cache_kinds() -> dict[str, Callable[[], tuple[nn.Module, Callable[[], list[Any]]]]]:
    """Every kind of cache: how to get a model and a maker of its empty caches."""

    def own(name: str, **shape: Any) -> Callable[[], tuple[nn.Module, Callable[[], list[Any]]]]:
        def make() -> tuple[nn.Module, Callable[[], list[Any]]]:
            model = random_model(name, **shape)
            return model, lambda: make_prompt_cache(model)

        return make

    def llama_with(layer: Callable[[], Any]) -> Callable[[], tuple[nn.Module, Callable[[], Any]]]:
        def make() -> tuple[nn.Module, Callable[[], list[Any]]]:
            model = random_model("llama")
            return model, lambda: [layer() for _ in range(2)]

        return make

    return {
        "plain": own("llama"),
        "quantised": llama_with(lambda: Keys(how=Quantisation(8, 32, packed=True))),
        "quantised later": llama_with(lambda: Keys(how=Quantisation(4, 32, 7))),
        "quantised by mlx-lm": llama_with(lambda: QuantizedKVCache(group_size=32, bits=8)),
        "rotating": llama_with(lambda: RotatingKVCache(max_size=16)),
        "concatenating": llama_with(ConcatenateKVCache),
        "sliding window": own("gemma3_text", num_hidden_layers=2),
        "recurrent": own("mamba"),
        "hybrid": own("qwen3_next", num_hidden_layers=2),
        "chunked": own("llama4"),
        "list of caches": own("baichuan_m1"),
    }


KINDS = [kind for kind in cache_kinds() if kind != "concatenating"]
"""Those that models bring."""


def of_kind(kind: str, **options: Any) -> LanguageModel:
    """A language model whose caches are of a kind."""
    model, make_cache = cache_kinds()[kind]()
    lm = LanguageModel(model, alphabet_tokenizer(), **options)
    lm.runtime.make_cache = make_cache  # type: ignore[method-assign]
    return lm
