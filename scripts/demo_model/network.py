"""The two networks, both Llamas of mlx-lm: initial weights, and the loss.

Their configurations are in ``texts/networks.json``.
"""

from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path
from mlx_lm.models.llama import Model, ModelArgs

from demo_model.batches import Batch
from demo_model.drawing import read

_CONFIGS: Final[dict[str, dict[str, Any]]] = read("networks")


def config(size: str) -> dict[str, Any]:
    """The ``config.json`` of the ``main`` model or of the ``draft`` model."""
    return dict(_CONFIGS[size])


def arguments(size: str) -> Any:
    """The configuration, as mlx-lm's arguments."""
    return ModelArgs.from_dict(config(size))


def new_model(size: str, seed: int) -> Any:
    return fresh(Model(arguments(size)), seed, layers=config(size)["num_hidden_layers"])


def fresh(network: nn.Module, seed: int, layers: int) -> nn.Module:
    """The network with new weights, scaled for a residual stream of ``layers`` layers."""
    mx.random.seed(seed)

    def drawn(name: str, weight: mx.array) -> mx.array:
        if weight.ndim < 2:
            return weight  # a norm's
        if "embed_tokens" in name:
            return mx.random.normal(weight.shape) * 0.05
        adds = "o_proj" in name or "down_proj" in name
        scale = (weight.shape[1] * (2 * layers if adds else 1)) ** -0.5
        result: mx.array = mx.random.normal(weight.shape) * scale
        return result

    network.update(tree_map_with_path(drawn, network.parameters()))
    mx.eval(network.parameters())
    return network


def loss(model: Any, batch: Batch) -> mx.array:
    """The summed cross-entropy of the batch's targets."""
    at_places = logits(model, model.model(batch.tokens), batch.places)
    result: mx.array = nn.losses.cross_entropy(at_places, batch.targets, reduction="sum")
    return result


def logits(model: Any, states: mx.array, places: mx.array) -> mx.array:
    """The logits [n, vocabulary] at flat `places` [n] of `states` [rows, length, width]."""
    chosen = states.reshape(-1, states.shape[-1])[places]
    result: mx.array = model.model.embed_tokens.as_linear(chosen)
    return result
