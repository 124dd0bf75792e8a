"""Numbers of a model's ``config.json``, each of which goes by several names."""

from __future__ import annotations

from collections.abc import Mapping
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


def max_context_of(config: Mapping[str, Any]) -> int | None:
    """The tokens of prompt and answer together that a configuration allows; ``None`` if it does not
    say. YaRN extends the length that the model was trained with by a factor."""
    known = number_of(config, MAX_CONTEXT)
    nested = config.get("text_config")
    for level in (config, nested if isinstance(nested, Mapping) else {}):
        for name in ("rope_scaling", "rope_parameters"):
            rope = level.get(name)
            if not isinstance(rope, Mapping) or "yarn" not in (
                rope.get("rope_type"),
                rope.get("type"),
            ):
                continue
            length, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
            if isinstance(length, int) and isinstance(factor, int | float) and factor >= 1:
                return max(known or 0, int(length * factor))
    return known


def number_of(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first positive number under one of these names, or ``None``."""
    nested = config.get("text_config")
    for level in (config, nested if isinstance(nested, Mapping) else {}):
        for name in names:
            value = level.get(name)
            if isinstance(value, int) and value > 0:
                return value
    return None
