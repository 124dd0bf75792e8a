"""How published checkpoints name the tensors of their multi-token-prediction heads.

Of a head that has several layers only the first is taken: published ones have one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..model_config import levels

BLOCK = "model.layers.0."
"""The decoder layer, as the first one of a model by itself."""

_WRAPPERS = ("model.language_model.", "language_model.")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a head are, and what makes its kind special.

    - ``names``: the part that each beginning of a name stands for, with ``{n}`` for the number of
      layers of the model; the first that fits counts, and ``None`` is for what the model has, too.
    - ``state_first``: the projection takes the state before the embedding, not after it.
    - ``raw_states``: the head is made for states before the model's final norm.
    - ``centred``: the maker's RMS norms multiply by one more than their weights.
    """

    names: Mapping[str, str | None]
    state_first: bool = False
    raw_states: bool = False
    centred: bool = False

    def named(self, names: Collection[str], layers: int) -> dict[str, str]:
        """The names of a head's tensors, and what each is in a ``Head``; empty if it has none."""
        parts = {start.format(n=layers): part for start, part in self.names.items()}
        found = {}
        for name in names:
            plain = name
            for wrapper in _WRAPPERS:
                plain = plain.removeprefix(wrapper)
            start = next((start for start in parts if plain.startswith(start)), None)
            part = None if start is None else parts[start]
            if start is not None and part is not None:
                found[name] = part + plain.removeprefix(start)
        return found if "projection.weight" in found.values() else {}


DEEPSEEK = Layout(
    {
        "model.layers.{n}.enorm.": "token_norm.",
        "model.layers.{n}.hnorm.": "state_norm.",
        "model.layers.{n}.eh_proj.": "projection.",
        "model.layers.{n}.shared_head.norm.": "norm.",
        "model.layers.{n}.shared_head.head.": None,
        "model.layers.{n}.embed_tokens.": None,
        "model.layers.{n}.": BLOCK,
    }
)
"""DeepSeek V3 (arXiv 2412.19437) and those after it, GLM-4.5 and the demo model."""

QWEN = Layout(
    {
        "mtp.pre_fc_norm_embedding.": "token_norm.",
        "mtp.pre_fc_norm_hidden.": "state_norm.",
        "mtp.fc.": "projection.",
        "mtp.norm.": "norm.",
        "mtp.layers.0.": BLOCK,
    },
    centred=True,
)
"""Qwen3-Next and Qwen3.5."""

MIMO = Layout(
    {
        "model.mtp_layers.0.token_layernorm.": "token_norm.",
        "model.mtp_layers.0.hidden_layernorm.": "state_norm.",
        "model.mtp_layers.0.input_proj.": "projection.",
        "model.mtp_layers.0.final_layernorm.": "norm.",
        "model.mtp_layers.0.": BLOCK,
    },
    state_first=True,
)
"""MiMo (arXiv 2505.07608)."""

ERNIE = Layout(
    {
        "model.mtp_emb_norm.0.": "token_norm.",
        "model.mtp_hidden_norm.0.": "state_norm.",
        "model.mtp_linear_proj.0.": "projection.",
        "model.norm.": "norm.",  # that of the model
        "model.mtp_block.0.": BLOCK,
    },
    raw_states=True,
)
"""Ernie 4.5, as it was trained (PaddlePaddle's ERNIEKit)."""

LAYOUTS = (DEEPSEEK, QWEN, MIMO, ERNIE)


def layout_of(
    config: Mapping[str, Any], names: Collection[str]
) -> tuple[Layout, dict[str, str]] | None:
    """The layout of the head among these tensors, with its ``named``; ``None`` for no head."""
    layers = levels(config)[-1].get("num_hidden_layers")
    if not isinstance(layers, int) or config.get("model_file") is not None:  # its own code
        return None
    for layout in LAYOUTS:
        if found := layout.named(names, layers):
            return layout, found
    return None


def unknown(config: Mapping[str, Any], names: Collection[str]) -> str | None:
    """A tensor that looks as if it were of a head, among those without a known layout."""
    layer = f".layers.{levels(config)[-1].get('num_hidden_layers')}."
    return next((name for name in names if ".mtp" in f".{name}" or layer in name), None)
