"""One sequence: mlxgen's stream against mlx-lm's, and the memory's bandwidth that it reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_reduce
from mlx_lm.models import llama
from mlx_lm.sample_utils import make_sampler

import mlxgen

from .kit import (
    WIDE,
    Comparison,
    Figure,
    Spread,
    at_least,
    compare,
    demo,
    fake_tokenizer,
    measure,
    ours,
    random_llama,
    theirs,
    timed,
)

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
LARGE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 8,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
}
"""A quarter of the layers of a Llama of 8 billion parameters."""


def figures(turns: int) -> Iterator[Figure]:
    models: tuple[tuple[str, Callable[[], mlxgen.LanguageModel], int, float], ...] = (
        ("demo", demo, 60, 1.0),
        ("150k vocabulary", lambda: random_llama(WIDE, 64, 2), 20, 1.2),
    )
    settings = (("greedy", 0.0, 1.0), ("temperature 0.7, top-p 0.9", 0.7, 0.9))
    for name, make, tokens, target in models:
        lm = make()
        for label, temperature, top_p in settings:
            ratio = streams(lm, tokens, turns, temperature, top_p).ratio
            what = f"{name}, {label}: tokens per second over mlx_lm.stream_generate's"
            yield at_least(what, ratio.median, target, ratio)
    if mx.default_device() == mx.Device(mx.cpu):
        return  # there, reading the weights is not what takes the time
    for label, bits in (("bfloat16", None), ("4 bits", 4)):
        what = f"8 layers of 8B shape, {label}: percent of the memory bandwidth"
        yield at_least(what, share_of_bandwidth(bits, 60, turns), 70)


def streams(
    lm: mlxgen.LanguageModel, tokens: int, turns: int, temperature: float = 0.0, top_p: float = 1.0
) -> Comparison:
    """Seconds from the call to the last token, of both libraries.

    Not from the first token, which is out before anything else is submitted on our side: that would
    count against it.
    """
    sampler = make_sampler(temp=temperature, top_p=top_p if top_p < 1 else 0.0)
    settings = {"temperature": temperature, "top_p": top_p, "seed": 1}
    return compare(
        lambda: timed(ours(lm, PROMPT, tokens, **settings), tokens),
        lambda: timed(theirs(lm, PROMPT, tokens, sampler=sampler), tokens),
        turns,
    )


def share_of_bandwidth(bits: int | None, tokens: int, turns: int) -> float:
    """Bytes a second of weights that generating one row reads, in percent of what a copy does."""
    model = llama.Model(llama.ModelArgs.from_dict(LARGE))
    model.set_dtype(mx.bfloat16)
    if bits is not None:
        nn.quantize(model, 64, bits)
    mx.eval(model.parameters())
    lm = mlxgen.LanguageModel(model, fake_tokenizer(LARGE["vocab_size"]), draft="off")
    source = mx.zeros((1 << 28,), mx.uint32)
    mx.eval(source)

    def generate() -> float:
        return timed(ours(lm, PROMPT, tokens), tokens, after=1)

    def copy() -> None:
        mx.eval(mx.bitwise_invert(source))

    def nbytes_of(module: nn.Module) -> int:
        size: int = tree_reduce(lambda total, array: total + array.nbytes, module.parameters(), 0)
        return size

    measure(generate), measure(copy)
    seconds = Spread.of([measure(generate) for _ in range(turns)]).median / (tokens - 1)
    given = 2 * source.nbytes / min(measure(copy) for _ in range(turns))
    read = nbytes_of(model) - nbytes_of(model.model.embed_tokens)  # a token reads one row of it
    return 100 * read / seconds / given
