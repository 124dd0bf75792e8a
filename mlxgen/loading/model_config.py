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


def number_of(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first positive number under one of these names, or ``None``."""
    nested = config.get("text_config")
    for level in (config, nested if isinstance(nested, Mapping) else {}):
        for name in names:
            value = level.get(name)
            if isinstance(value, int) and value > 0:
                return value
    return None
