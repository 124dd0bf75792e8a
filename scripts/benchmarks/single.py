"""One sequence: mlxgen's stream against mlx-lm's, and the memory bandwidth that it reaches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama

import mlxgen

from . import kit
from .architectures import SHAPES

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
MODELS: Any = (
    ("demo", mlxgen.load, 60, 1.0),
    ("150k vocabulary", lambda: kit.random_llama(kit.WIDE, 64, 2), 20, 1.2),
)
"""Each with the tokens to generate, and the target speed relative to mlx-lm's."""
SAMPLING: Any = (
    ("greedy", {}),
    ("temperature 0.7, top-p 0.9", {"temperature": 0.7, "top_p": 0.9, "seed": 1}),
)
LARGE = SHAPES["8 layers of 8B"]  # a quarter of the layers of a Llama of 8 billion parameters


def figures(turns: int) -> Iterator[kit.Figure]:
    """Times count from the call to the last token: our first token is delivered before anything
    else is submitted, so without it we would seem slower."""
    for name, make, tokens, target in MODELS:
        lm = make()
        for sampling, options in SAMPLING:
            ratio = kit.Case(lm, PROMPT, tokens, [options]).timed(turns).ratio
            what = f"{name}, {sampling}: tokens per second over mlx_lm.stream_generate's"
            yield kit.at_least(what, ratio, target)
    if mx.default_device() == mx.Device(mx.cpu):
        return  # there, reading the weights is not the bottleneck
    for label, bits in (("bfloat16", None), ("4 bits", 4)):
        what = f"8 layers of 8B shape, {label}: percent of the memory bandwidth"
        yield kit.at_least(what, share_of_bandwidth(bits, 60, turns), 70)


def share_of_bandwidth(bits: int | None, tokens: int, turns: int) -> float:
    """Bytes of weights that one row reads per second, in percent of a copy's bandwidth."""
    model = llama.Model(llama.ModelArgs.from_dict(LARGE))
    model.set_dtype(mx.bfloat16)
    if bits is not None:
        nn.quantize(model, 64, bits)
    mx.eval(model.parameters())
    lm = mlxgen.LanguageModel(model, kit.fake_tokenizer(LARGE["vocab_size"]), draft="off")
    source = mx.zeros((1 << 28,), mx.uint32)
    mx.eval(source)
    found = kit.compare(
        lambda: kit.timed(kit.Case(lm, PROMPT, tokens).ours(), tokens, after=1),
        lambda: mx.eval(mx.bitwise_invert(source)),
        turns,
    )
    weights: Any = dict(tree_flatten(model.parameters()))
    read: int = sum(  # a token reads one row of the embedding
        array.nbytes for name, array in weights.items() if "embed_tokens" not in name
    )
    return 100 * (tokens - 1) * read / found.ours.median / (2 * source.nbytes / found.theirs.low)
