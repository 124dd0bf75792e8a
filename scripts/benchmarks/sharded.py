"""What one of several machines has of a model, and what they tell each other in a pass.

Owns the count. The real architecture is built in its real size, cut as mlx-lm cuts it and called;
none of it is evaluated, so it takes no memory.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map

from .primitives import VIEWS, kernels_of_a_gpu, names
from .simulated import Device, Shape

HANDOVER = 40e-6  # seconds in which a GPU gives a sum to the CPU and takes it back; an assumption
KNOWN = 4  # bytes a token of the sum that tells the others what rank 0 drew


@dataclass(frozen=True, eq=False)
class Model:
    """An architecture of mlx-lm with the sizes of its ``config.json``."""

    name: str
    architecture: str
    config: dict[str, Any]


def _model(name: str, architecture: str, **config: Any) -> Model:
    common = {
        "model_type": architecture,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": False,
    }
    return Model(name, architecture, {**common, **config})


def _llama(name: str, hidden: int, inner: int, layers: int, heads: int, vocabulary: int) -> Model:
    return _model(
        name,
        "llama",
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        vocab_size=vocabulary,
    )


def _qwen3_moe(name: str, hidden: int, inner: int, layers: int, heads: int) -> Model:
    return _model(
        name,
        "qwen3_moe",
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        moe_intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=4,
        num_experts=128,
        num_experts_per_tok=8,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        norm_topk_prob=True,
        vocab_size=151_936,
    )


LLAMA_8B = _llama("Llama-3.1-8B", 4_096, 14_336, 32, 32, 128_256)
LLAMA_70B = _llama("Llama-3.3-70B", 8_192, 28_672, 80, 64, 128_256)
DEVSTRAL = _llama("Devstral-2-123B", 12_288, 28_672, 88, 96, 131_072)
QWEN_30B = _qwen3_moe("Qwen3-30B-A3B", 2_048, 768, 48, 32)
QWEN_235B = _qwen3_moe("Qwen3-235B-A22B", 4_096, 1_536, 94, 64)
QWEN_SMALL = _model(
    "Qwen3-0.6B",
    "qwen3",
    hidden_size=1_024,
    intermediate_size=3_072,
    num_hidden_layers=28,
    num_attention_heads=16,
    vocab_size=151_936,
    tie_word_embeddings=True,
)


@dataclass(frozen=True, slots=True)
class Part(Shape):
    """What one of ``machines`` has of a model, in bytes: ``dense`` weights, which every pass
    reads, all its ``experts``, of which a token chooses a share, and ``held`` in all.

    ``weights`` are those that a token meets. ``sums`` are the bytes a token of each sum over all.
    """

    machines: int = 1
    dense: int = 0
    experts: int = 0
    chosen: float = 0.0
    held: int = 0
    kernels: int = 0
    sums: tuple[int, ...] = ()

    @property
    def nbytes(self) -> float:
        return self.held

    @property
    def launches(self) -> int:
        return self.kernels

    def read(self, tokens: int) -> float:
        """Tokens choose their experts independently of each other, as far as is known here."""
        return self.dense + self.experts * (1 - (1 - self.chosen) ** tokens)

    def waiting(self, device: Device, tokens: int) -> float:
        if device.link is None or self.machines == 1:
            return 0.0
        told = (device.link.sum(each * tokens, self.machines) for each in self.sums)
        return sum(told) + len(self.sums) * HANDOVER


@cache
def part(model: Model, bits: int, machines: int) -> Part:
    """One of so many ``machines``, with weights of so many ``bits``."""
    module = importlib.import_module(f"mlx_lm.models.{model.architecture}")
    made: Any = module.Model(module.ModelArgs.from_dict(model.config))
    made.set_dtype(mx.bfloat16)
    if bits < 16:
        nn.quantize(made, group_size=64, bits=bits)
    if machines > 1:
        made.shard(_Group(machines))
    made.update(tree_map(lambda array: mx.zeros(array.shape, array.dtype), made.parameters()))
    arrays = dict(tree_flatten(made.parameters()))
    sums, kernels = _called(made)
    table = "" if model.config["tie_word_embeddings"] else "model.embed_tokens."
    read = {path: array for path, array in arrays.items() if not (table and table in path)}
    experts = {path: array for path, array in read.items() if ".switch_mlp." in path}
    chosen = model.config.get("num_experts_per_tok", 0) / model.config.get("num_experts", 1)
    numbers = {path: _numbers(path, array, arrays, bits) for path, array in read.items()}
    nbytes = sum(array.nbytes for array in experts.values())
    attention = made.layers[0].self_attn
    return Part(
        name=f"{model.name}, {bits} bits",
        weights=sum(
            number * (chosen if path in experts else 1) for path, number in numbers.items()
        ),
        bits=bits,
        layers=len(made.layers),
        heads=attention.n_heads,
        kv_heads=attention.n_kv_heads,
        width=model.config["head_dim"],
        machines=machines,
        dense=sum(array.nbytes for array in read.values()) - nbytes,
        experts=nbytes,
        chosen=chosen,
        held=sum(array.nbytes for array in arrays.values()),
        kernels=kernels,
        sums=(*sums, KNOWN) if sums else (),
    )


def _called(made: nn.Module) -> tuple[list[int], int]:
    """The bytes of each sum over all machines when one token is run, and the kernels."""
    sums: list[int] = []

    def all_sum(x: mx.array, **_: Any) -> mx.array:
        sums.append(x.nbytes)
        return x

    with mock.patch.object(mx.distributed, "all_sum", all_sum), kernels_of_a_gpu() as single:
        logits = made(mx.zeros((1, 1), mx.int32))
    run = sum(name not in VIEWS | {"Full"} for name in names([logits]))  # weights are "Full" here
    writes = 2 * len(made.layers)  # keys and values go into a cache, which is not there
    return sums, run + len(single) + writes


def _numbers(path: str, array: mx.array, arrays: dict[str, mx.array], bits: int) -> int:
    """How many weights are in an array, scales and biases of quantised ones left out."""
    name, _, kind = path.rpartition(".")
    if kind != "weight":
        return 0
    return array.size * 32 // bits if f"{name}.scales" in arrays else array.size


class _Group:
    """Stands for the machines, as their first."""

    def __init__(self, machines: int) -> None:
        self._machines = machines

    def size(self) -> int:
        return self._machines

    def rank(self) -> int:
        return 0
