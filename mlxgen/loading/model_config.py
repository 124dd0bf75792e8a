"""Numbers of a model's ``config.json``, each of which goes by several names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_CONTEXT = (
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "n_positions",
    "n_ctx",
)
HEADS = ("num_attention_heads", "n_heads", "num_heads", "n_head")
EXPERTS = ("num_experts_per_tok", "moe_top_k", "top_k_experts", "num_experts_per_token")


LAYERS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")
WIDTHS = ("hidden_size", "d_model", "dim", "n_embd")


def levels(config: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """A configuration, and its part for the text model, if it has one."""
    nested = config.get("text_config")
    return (config, nested) if isinstance(nested, Mapping) else (config,)


def max_context_of(config: Mapping[str, Any]) -> int | None:
    """The tokens of prompt and answer together that a configuration allows; ``None`` if it does not
    say. YaRN extends the length that the model was trained with by a factor."""
    known = number_of(config, MAX_CONTEXT)
    for level in levels(config):
        for name in ("rope_scaling", "rope_parameters"):
            rope = level.get(name)
            if not isinstance(rope, Mapping):
                continue
            if "yarn" not in (rope.get("rope_type"), rope.get("type")):
                continue
            length, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
            if isinstance(length, int) and isinstance(factor, int | float) and factor >= 1:
                return max(known or 0, int(length * factor))
    return known


def number_of(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first positive number under one of these names, or ``None``."""
    for level in levels(config):
        for name in names:
            value = level.get(name)
            if isinstance(value, int) and value > 0:
                return value
    return None


def kv_bytes_of(config: Mapping[str, Any], bytes_each: int = 2) -> int | None:
    """About how many bytes of KV a token takes; ``None`` if the configuration does not say.

    Two vectors for each layer and KV head; for latent attention, the latent vector and the rotary
    key instead. Windows and recurrent states do not grow with the text: they are left out where
    ``layer_types`` names them, and elsewhere counted as if they grew.
    """
    layers = number_of(config, LAYERS)
    kinds = levels(config)[-1].get("layer_types", config.get("layer_types"))
    if isinstance(kinds, list):
        layers = sum("full" in str(kind) for kind in kinds) or layers
    latent = number_of(config, ("kv_lora_rank",))
    if layers is not None and latent is not None:
        return layers * (latent + (number_of(config, ("qk_rope_head_dim",)) or 0)) * bytes_each
    heads, width = number_of(config, HEADS), number_of(config, WIDTHS)
    if layers is None or heads is None or width is None:
        return None
    size = number_of(config, ("head_dim",)) or width // heads
    return 2 * layers * (number_of(config, ("num_key_value_heads",)) or heads) * size * bytes_each
