"""Tiny models with random weights, written to disk as mlx-lm would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, cast

import mlx.core as mx
import mlx.nn as nn
from benchmarks.architectures import configuration, random_model
from mlx.utils import tree_flatten
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tuner.utils import linear_to_lora_layers

from .tokenizers import byte_level_tokenizer

LORA = {"rank": 2, "scale": 1.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}


def tiny_config(vocab_size: int, **changes: Any) -> dict[str, Any]:
    shape = {"hidden_size": 32, "intermediate_size": 32, "head_dim": None}
    places = {"max_position_embeddings": 4096, "tie_word_embeddings": True}
    return configuration("llama", vocab_size=vocab_size, **{**shape, **places, **changes})


def tiny_model(config: dict[str, Any]) -> nn.Module:
    mx.random.seed(7)
    return cast(nn.Module, Model(ModelArgs.from_dict(config)))


Change: TypeAlias = Callable[[nn.Module, dict[str, Any]], None]
"""Of a model and its configuration, before they are written."""


def write_checkpoint(
    folder: Path,
    tokenizer: TokenizerWrapper | None = None,
    *,
    change: Change = lambda model, config: None,
) -> Path:
    """A Llama of some thousand weights in ``folder``; ``change`` may quantise it."""
    tokenizer = tokenizer or byte_level_tokenizer()
    config = tiny_config(len(tokenizer), eos_token_id=sorted(tokenizer.eos_token_ids))
    model = tiny_model(config)
    change(model, config)
    _write(folder, config, tokenizer)
    mx.save_safetensors(str(folder / "model.safetensors"), arrays(model))
    greedy = {"do_sample": False}  # so that tests compare answers, whatever is drawn by default
    (folder / "generation_config.json").write_text(json.dumps(greedy))
    return folder


def write_random(
    folder: Path,
    name: str,
    *,
    files: int = 1,
    change: Change = lambda model, config: None,
    **shape: Any,
) -> Path:
    """A random model of an architecture in ``folder``, with each layer's weights in one of several
    files; ``change`` may quantise it."""
    tokenizer = byte_level_tokenizer()
    shape = {"vocab_size": len(tokenizer), **shape}
    model, config = random_model(name, **shape), configuration(name, **shape)
    change(model, config)
    _write(folder, config, tokenizer)
    places: dict[str, str] = {}
    tensors: list[dict[str, mx.array]] = [{} for _ in range(files)]
    for key, array in arrays(model).items():
        layer = key.split("layers.")[1].split(".")[0] if "layers." in key else "0"
        at = int(layer) % files
        tensors[at][key], places[key] = array, f"model-{at}.safetensors"
    for i, some in enumerate(tensors):
        mx.save_safetensors(str(folder / f"model-{i}.safetensors"), some)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def _write(folder: Path, config: dict[str, Any], tokenizer: TokenizerWrapper) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save_pretrained(folder)


def quantised(model: nn.Module, config: dict[str, Any]) -> None:
    """A change that quantises a model."""
    config["quantization"] = {"group_size": 32, "bits": 4}
    nn.quantize(model, **config["quantization"])


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
