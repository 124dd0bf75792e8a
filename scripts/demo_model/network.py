"""The Llama network, written to train fast on a CPU.

Owns the sizes of the two models and a forward pass that gives what mlx-lm's Llama gives with the
same weights. MLX computes `exp` on a Linux CPU one number at a time, which takes most of a training
step; here it is a polynomial of plain operations, exact to float32. Nothing is cached: this is
for training only.
"""

from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.llama import Model, ModelArgs

from demo_model.batches import Batch

Weights = dict[str, Any]

VOCABULARY: Final = 1024
CONTEXT: Final = 2048
_HEAD: Final = 32
_BASE: Final = 10000.0
_EPSILON: Final = 1e-5
# 2 ** r for r in [0, 1), highest power first (Cephes).
_POWER_OF_TWO: Final = (
    *(1.8775767e-3, 8.9893397e-3, 5.5826318e-2),
    *(2.4015361e-1, 6.9315308e-1, 9.9999994e-1),
)


def config(size: str) -> dict[str, Any]:
    """The `config.json` of the main model or of the draft model."""
    width, layers, inner = {"main": (128, 5, 384), "draft": (64, 2, 192)}[size]
    heads = {"num_nextn_predict_layers": 1} if size == "main" else {}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "intermediate_size": inner,
        "num_attention_heads": width // _HEAD,
        "num_key_value_heads": width // _HEAD,
        "head_dim": _HEAD,
        "hidden_act": "silu",
        "rms_norm_eps": _EPSILON,
        "rope_theta": _BASE,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
    } | heads


def new_model(size: str, seed: int) -> Weights:
    """Fresh weights of mlx-lm's Llama."""
    mx.random.seed(seed)
    model = Model(ModelArgs.from_dict(config(size)))
    weights = model.parameters()
    layers = len(weights["model"]["layers"])

    def normal(array: mx.array, scale: float) -> mx.array:
        return mx.random.normal(array.shape) * scale

    tree = weights["model"]
    tree["embed_tokens"]["weight"] = normal(tree["embed_tokens"]["weight"], 0.05)
    for layer in tree["layers"]:
        for part in ("self_attn", "mlp"):
            for name, one in layer[part].items():
                if "weight" not in one:
                    continue
                scale = one["weight"].shape[1] ** -0.5
                if name in ("o_proj", "down_proj"):
                    scale *= (2 * layers) ** -0.5
                one["weight"] = normal(one["weight"], scale)
    mx.eval(weights)
    whole: Weights = tree_unflatten(tree_flatten(weights))  # without parts that have no weights
    return whole


def hidden(weights: Weights, tokens: mx.array) -> mx.array:
    """The last hidden states of `tokens` [rows, length], as [rows, length, width]."""
    tree = weights["model"]
    length = tokens.shape[1]
    cos, sin = rotations(length)
    mask = mx.triu(mx.full((length, length), -1e9), k=1)
    x = tree["embed_tokens"]["weight"][tokens]
    for layer in tree["layers"]:
        attention = layer["self_attn"]
        y = normed(x, layer["input_layernorm"])
        queries, keys, values = projected(attention, y, cos, sin)
        parts = probabilities(queries @ keys.swapaxes(-1, -2) + mask)
        x = x + joined_heads(attention, parts @ values)
        x = x + feed_forward(layer["mlp"], normed(x, layer["post_attention_layernorm"]))
    return normed(x, tree["norm"])


def loss(weights: Weights, batch: Batch) -> mx.array:
    """The summed cross-entropy of the batch's targets."""
    at_places = logits(hidden(weights, batch.tokens), weights, batch.places)
    chosen = mx.take_along_axis(at_places, batch.targets[:, None], axis=-1)[:, 0]
    return (log_sum_exp(at_places) - chosen).sum()


def logits(states: mx.array, weights: Weights, places: mx.array) -> mx.array:
    """The logits [n, vocabulary] at flat `places` [n] of `states` [rows, length, width]."""
    chosen = states.reshape(-1, states.shape[-1])[places]
    result: mx.array = chosen @ weights["model"]["embed_tokens"]["weight"].T
    return result


def linear(x: mx.array, layer: Weights) -> mx.array:
    weight: mx.array = layer["weight"]
    return x @ weight.T


def normed(x: mx.array, layer: Weights) -> mx.array:
    return mx.fast.rms_norm(x, layer["weight"], _EPSILON)


def feed_forward(layer: Weights, x: mx.array) -> mx.array:
    gate = linear(x, layer["gate_proj"])
    return linear(gate * _sigmoid(gate) * linear(x, layer["up_proj"]), layer["down_proj"])


def projected(
    layer: Weights, x: mx.array, cos: mx.array, sin: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """Queries (scaled), keys and values, each [rows, heads, length, head size]."""
    rows, length, width = x.shape
    # One product for all three: [rows, 3 * heads, length, head size].
    joined = mx.concatenate(
        [
            layer["q_proj"]["weight"] * _HEAD**-0.5,
            layer["k_proj"]["weight"],
            layer["v_proj"]["weight"],
        ]
    )
    heads = width // _HEAD
    mixed = (x @ joined.T).reshape(rows, length, 3 * heads, _HEAD).transpose(0, 2, 1, 3)
    turned = _rotate(mixed[:, : 2 * heads], cos, sin)
    return turned[:, :heads], turned[:, heads:], mixed[:, 2 * heads :]


def joined_heads(layer: Weights, mixed: mx.array) -> mx.array:
    """What the attention heads read [rows, heads, length, head size], as [rows, length, width]."""
    rows, heads, length, size = mixed.shape
    return linear(mixed.transpose(0, 2, 1, 3).reshape(rows, length, heads * size), layer["o_proj"])


def rotations(length: int) -> tuple[mx.array, mx.array]:
    rates = mx.power(_BASE, -mx.arange(0, _HEAD, 2) / _HEAD)
    angles = mx.arange(length)[:, None] * rates[None]
    return mx.cos(angles), mx.sin(angles)


def probabilities(x: mx.array) -> mx.array:
    """The softmax over the last axis."""
    parts: mx.array = _exp(x - mx.stop_gradient(x.max(axis=-1, keepdims=True)))
    return parts / parts.sum(axis=-1, keepdims=True)


def log_sum_exp(x: mx.array) -> mx.array:
    """Over the last axis, which goes."""
    top = mx.stop_gradient(x.max(axis=-1, keepdims=True))
    return mx.log(_exp(x - top).sum(axis=-1)) + top[..., 0]


def _rotate(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    a, b = x[..., : _HEAD // 2], x[..., _HEAD // 2 :]
    return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _exp_forward(x: mx.array) -> mx.array:
    # No smaller than 2 ** -60: denormal numbers would make the products after it crawl.
    y = mx.maximum(x * 1.4426950408889634, -60.0)
    whole = mx.floor(y)
    rest = y - whole
    power: mx.array = mx.array(_POWER_OF_TWO[0])
    for factor in _POWER_OF_TWO[1:]:
        power = power * rest + factor
    return power * mx.view(mx.left_shift(whole.astype(mx.int32) + 127, 23), mx.float32)


def _sigmoid_forward(x: mx.array) -> mx.array:
    return 1.0 / (1.0 + _exp_forward(mx.minimum(-x, 80.0)))


_exp: Any = mx.custom_function(mx.compile(_exp_forward))
_exp.vjp(lambda x, cotangent, output: cotangent * output)
_sigmoid: Any = mx.custom_function(mx.compile(_sigmoid_forward))
_sigmoid.vjp(lambda x, cotangent, output: cotangent * (output - output * output))
