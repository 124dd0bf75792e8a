"""Tiny models with random weights, written to disk as mlx-lm would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tuner.utils import linear_to_lora_layers

from .tokenizers import byte_level_tokenizer

LORA = {"rank": 2, "scale": 1.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}


def tiny_config(vocab_size: int, **changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab_size,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        **changes,
    }


def tiny_model(config: dict[str, Any]) -> nn.Module:
    mx.random.seed(7)
    return cast(nn.Module, Model(ModelArgs.from_dict(config)))


def write_checkpoint(
    folder: Path,
    tokenizer: TokenizerWrapper | None = None,
    *,
    change: Callable[[nn.Module, dict[str, Any]], None] = lambda model, config: None,
) -> Path:
    """A Llama of some thousand weights in ``folder``; ``change`` may quantise it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or byte_level_tokenizer()
    config = tiny_config(len(tokenizer), eos_token_id=sorted(tokenizer.eos_token_ids))
    model = tiny_model(config)
    change(model, config)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), arrays(model))
    tokenizer.save_pretrained(folder)
    return folder


def write_adapter(folder: Path, checkpoint: Path, *, width: int | None = None) -> Path:
    """A LoRA adapter for the model in ``checkpoint``, or for one of another hidden size."""
    config = json.loads((checkpoint / "config.json").read_text())
    model = tiny_model({**config, "hidden_size": width or config["hidden_size"]})
    return write_adapter_of(model, folder)


def write_adapter_of(
    model: nn.Module, folder: Path, *, kind: str = "lora", lora: dict[str, Any] = LORA
) -> Path:
    """An adapter of a ``kind`` for the last layer of a model, which is changed by this."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"fine_tune_type": kind, "num_layers": 1, "lora_parameters": lora}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    model.freeze()
    if kind == "full":
        model.layers[-1].unfreeze()
    else:
        linear_to_lora_layers(model, 1, lora, use_dora=kind == "dora")
    trained = cast(list[tuple[str, mx.array]], tree_flatten(model.trainable_parameters()))
    values = {name: mx.random.normal(array.shape) for name, array in trained}
    mx.save_safetensors(str(folder / "adapters.safetensors"), values)
    return folder


def arrays(model: nn.Module) -> dict[str, mx.array]:
    return dict(cast(list[tuple[str, mx.array]], tree_flatten(model.parameters())))
