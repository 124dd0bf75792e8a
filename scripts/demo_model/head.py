"""The multi-token-prediction head, in training.

Owns its forward pass, as it will draft: the first drafted token from the trunk's state, each later
one from the head's own state before it, both after their final norms. Its loss is taken against
what the trunk expects at the same place. It knows the trunk's weights and never changes them.

The names of the weights are DeepSeek V3's, with a Llama block; the embedding is the trunk's.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx.utils import tree_unflatten

from demo_model import network
from demo_model.batches import Batch

Weights = dict[str, Any]

# How much the loss of each drafted token counts. A later one matters only if those before stood.
DEPTHS: Final = (1.0, 0.8, 0.6, 0.4)


def new_head(seed: int) -> Weights:
    """Fresh weights; all of them are in `layers`, as the optimiser tells matrices by that."""
    mx.random.seed(seed)
    sizes = network.config("main")
    width, inner = sizes["hidden_size"], sizes["intermediate_size"]

    def matrix(rows: int, columns: int, scale: float = 1.0) -> mx.array:
        return mx.random.normal((rows, columns)) * (scale / sqrt(columns))

    norms = ("enorm", "hnorm", "input_layernorm", "post_attention_layernorm", "shared_head.norm")
    arrays = {name: mx.ones((width,)) for name in norms}
    arrays["eh_proj"] = matrix(width, 2 * width)
    for name in ("q_proj", "k_proj", "v_proj"):
        arrays[f"self_attn.{name}"] = matrix(width, width)
    arrays["self_attn.o_proj"] = matrix(width, width, 0.5**0.5)
    arrays["mlp.gate_proj"] = matrix(inner, width)
    arrays["mlp.up_proj"] = matrix(inner, width)
    arrays["mlp.down_proj"] = matrix(width, inner, 0.5**0.5)
    tree: Weights = tree_unflatten(
        [(f"model.layers.0.{name}.weight", array) for name, array in arrays.items()]
    )
    return tree


def loss(trunk: Weights, weights: Weights, batch: Batch) -> mx.array:
    """The summed cross-entropy of all depths at the batch's places, against the trunk's softmax."""
    states = mx.stop_gradient(network.hidden(trunk, batch.tokens))
    expected = mx.stop_gradient(network.probabilities(network.logits(states, trunk, batch.places)))
    total = mx.array(0.0)
    for weight, after in zip(DEPTHS, unrolled(trunk, weights, batch.tokens, states), strict=True):
        logits = network.logits(after, trunk, batch.places)
        wanted = (expected * logits).sum(axis=-1)
        total = total + weight * (network.log_sum_exp(logits) - wanted).sum()
    return total / sum(DEPTHS)


def unrolled(
    trunk: Weights, weights: Weights, tokens: mx.array, states: mx.array
) -> list[mx.array]:
    """The head's states [rows, length, width] at each depth, for the trunk's `states`.

    Those of depth d at place i are what the head has there as the d-th entry of a draft: entries up
    to i - d + 1 come from the trunk's states, the one after it from the head's of depth 1, and so
    on.
    """
    layer = weights["model"]["layers"][0]
    length = tokens.shape[1]
    cos, sin = network.rotations(length)
    embedded = network.normed(trunk["model"]["embed_tokens"]["weight"][tokens], layer["enorm"])
    result: list[mx.array] = []
    entries: list[tuple[mx.array, mx.array]] = []  # keys and values of each depth
    for _ in DEPTHS:
        before = network.normed(_later(states, 1), layer["hnorm"])
        x = network.linear(mx.concatenate([embedded, before], axis=-1), layer["eh_proj"])
        y = network.normed(x, layer["input_layernorm"])
        queries, keys, values = network.projected(layer["self_attn"], y, cos, sin)
        entries.append((keys, values))
        x = x + _attended(layer["self_attn"], queries, entries)
        y = network.normed(x, layer["post_attention_layernorm"])
        x = x + network.feed_forward(layer["mlp"], y)
        states = network.normed(x, layer["shared_head"]["norm"])
        result.append(states)
    return result


def agreement(trunk: Weights, weights: Weights, tokens: Sequence[int]) -> np.ndarray:
    """[depths, length]: whether the head's choice after each token, given all of them, is the
    trunk's."""
    given = mx.array([*tokens])[None]
    states = network.hidden(trunk, given)
    places = mx.arange(len(tokens))
    chosen = network.logits(states, trunk, places).argmax(axis=-1)
    drafted = [
        network.logits(after, trunk, places).argmax(axis=-1)
        for after in unrolled(trunk, weights, given, states)
    ]
    return np.array(mx.stack(drafted) == chosen)


def passes(agreed: np.ndarray, count: int) -> int:
    """How many passes of the trunk verify a text, if `count` tokens are drafted for each.

    `agreed` [depths, n] is of the places of the text that come after a known token.
    """
    place = total = 0
    while place < agreed.shape[1]:
        for depth in range(count):
            if place >= agreed.shape[1] or not agreed[depth, place]:
                break
            place += 1
        place += 1  # the token that the trunk draws itself
        total += 1
    return total


def _attended(
    layer: Weights, queries: mx.array, entries: list[tuple[mx.array, mx.array]]
) -> mx.array:
    """Attention of the last depth's `queries` [rows, heads, length, head size]."""
    length = queries.shape[2]
    last = len(entries) - 1
    keys, values = entries[0]
    mask = mx.triu(mx.full((length, length), -1e9), k=1 - last)
    scores = [queries @ keys.swapaxes(-1, -2) + mask]
    drafted = []  # of each depth after the first, one entry for each query
    for depth, (keys, values_then) in enumerate(entries[1:], start=1):
        own = _later(keys, last - depth)
        scores.append((queries * own).sum(axis=-1, keepdims=True))
        drafted.append(_later(values_then, last - depth))
    parts = network.probabilities(mx.concatenate(scores, axis=-1))
    mixed = parts[..., :length] @ values
    for place, one in enumerate(drafted, start=length):
        mixed = mixed + parts[..., place : place + 1] * one
    return network.joined_heads(layer, mixed)


def _later(x: mx.array, count: int) -> mx.array:
    """`x` [..., length, width] moved to places `count` later, with zeros before."""
    if count == 0:
        return x
    zeros = mx.zeros((*x.shape[:-2], count, x.shape[-1]))
    return mx.concatenate([zeros, x[..., :-count, :]], axis=-2)
