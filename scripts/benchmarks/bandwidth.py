"""How much of the memory's bandwidth a single row reaches while it generates.

Owns the count of bytes that a token has to read, and the measurement of what the memory gives.
Generating one row is bound by reading the weights, so this share tells how good a step can get.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_reduce
from mlx_lm.models import llama

import mlxgen
from mlxgen.loading.memory import memory_limit

from .alternate import Spread, measure
from .models import fake_tokenizer
from .single import PROMPT, timed

_EIGHT_BILLION: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
}


class Share(NamedTuple):
    """``read``: the bytes that a token reads; ``reached`` and ``given``: bytes a second."""

    read: int
    reached: float
    given: float

    @property
    def percent(self) -> float:
        return 100 * self.reached / self.given

    def __str__(self) -> str:
        return (
            f"{self.percent:.0f} %: {self.read / 1e9:.2f} GB a token, {self.reached / 1e9:.0f} of "
            f"{self.given / 1e9:.0f} GB a second"
        )


def share(lm: mlxgen.LanguageModel, tokens: int, turns: int, copied: int = 1 << 30) -> Share:
    """What generating one row reaches, of what a copy of so many bytes does."""

    def generate() -> float:
        stream = lm.stream(PROMPT, max_tokens=tokens, ignore_eos=True)
        return timed(iter(stream), tokens)

    generate()
    seconds = Spread.of([measure(generate) for _ in range(turns)]).median / (tokens - 1)
    read = bytes_read(lm, len(PROMPT) + tokens // 2)
    return Share(read, read / seconds, copy_speed(copied, turns))


def bytes_read(lm: mlxgen.LanguageModel, held: int) -> int:
    """The bytes of weights and KV that a token reads after ``held`` others."""
    weights = lm.footprint.weights
    table = getattr(lm.model.model, "embed_tokens", None)
    if table is not None and hasattr(lm.model, "lm_head"):  # it reads one row of the table
        weights -= _nbytes(table)
    return weights + held * lm.footprint.growing


def copy_speed(size: int, turns: int) -> float:
    """Bytes a second that a copy of ``size`` bytes reads and writes, the best of several."""
    source = mx.zeros((size // 4,), mx.uint32)
    mx.eval(source)

    def copy() -> None:
        mx.eval(mx.bitwise_invert(source))

    copy()
    return 2 * size / min(measure(copy) for _ in range(turns))


def large_llama(bits: int | None, **changes: int) -> mlxgen.LanguageModel:
    """The shape of a Llama of 8 billion parameters, in bfloat16 or with so many bits; with fewer
    layers where all of them would take more than half of the memory."""
    model = llama.Model(llama.ModelArgs.from_dict({**_EIGHT_BILLION, **changes}))
    model.set_dtype(mx.bfloat16)
    if bits is not None:
        nn.quantize(model, 64, bits)
    layers = model.model.layers
    each, whole = _nbytes(layers[0]), _nbytes(model)
    room = memory_limit()[0] / 2 - mx.get_active_memory() - (whole - len(layers) * each)
    del layers[max(1, int(room / each)) :]
    mx.eval(model.parameters())
    vocab_size = model.args.vocab_size
    return mlxgen.LanguageModel(
        model, fake_tokenizer(vocab_size), name=f"{len(layers)} layers", draft="off"
    )


def _nbytes(module: nn.Module) -> int:
    size: int = tree_reduce(lambda sum, array: sum + array.nbytes, module.parameters(), 0)
    return size
