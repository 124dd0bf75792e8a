"""Random models of real architectures, small unless told otherwise.

The same name, seed and shape give the same model; nothing is downloaded.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn


def read(name: str) -> Any:
    """A file of data in this folder."""
    path = Path(__file__).with_name(f"{name}.json")
    return json.loads(path.read_text(encoding="utf-8"))


_KNOWN: dict[str, dict[str, Any]] = read("architectures")
_COMMON = _KNOWN.pop("common")
ARCHITECTURES = tuple(_KNOWN)
VOCAB: int = _COMMON["vocab_size"]
SHAPES: dict[str, dict[str, Any]] = read("shapes")
"""Of models that are measured, by what they are."""


def random_model(name: str, seed: int = 0, **shape: Any) -> nn.Module:
    """A float32 model of one of the ``ARCHITECTURES``, with random weights.

    ``shape`` replaces values of its configuration.
    """
    mx.random.seed(seed)
    module = importlib.import_module(f"mlx_lm.models.{name}")
    model: nn.Module = module.Model(module.ModelArgs.from_dict(configuration(name, **shape)))
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model


def configuration(name: str, **shape: Any) -> dict[str, Any]:
    """The ``config.json`` of such a model."""
    config = {"model_type": name, **_COMMON, **_KNOWN[name], **shape}
    if name == "llama4":
        return {"model_type": name, "text_config": {**config, "model_type": "llama4_text"}}
    return config
