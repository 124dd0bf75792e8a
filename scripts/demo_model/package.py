"""The model folders as they are shipped.

Owns the files of a model folder that are not the tokenizer's. A folder is written beside its place
and then moved there, so that nobody ever sees half a model.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
from mlx.utils import tree_unflatten
from tokenizers import Tokenizer

from demo_model import network, records, tokenizer
from demo_model.batches import token_id
from demo_model.chat import END, END_OF_TEXT
from demo_model.optimiser import flatten

HEAD: Final = "mtp.safetensors"  # beside model.safetensors; mlx-lm reads model*.safetensors only


def save(size: str, weights: dict[str, Any], words: Tokenizer, folder: Path) -> None:
    """Write the main or the draft model to `folder`, replacing what was there."""
    fresh = folder.with_name(f".{folder.name}-new")
    old = folder.with_name(f".{folder.name}-old")
    for path in (fresh, old):
        shutil.rmtree(path, ignore_errors=True)
    tokenizer.save(words, fresh)
    ends = [token_id(words, END), token_id(words, END_OF_TEXT)]
    pad = token_id(words, END_OF_TEXT)
    config = network.config(size) | {"eos_token_id": ends, "pad_token_id": pad}
    _write(fresh / "config.json", config)
    generation = {"do_sample": False, "eos_token_id": ends, "pad_token_id": pad}
    _write(fresh / "generation_config.json", generation)
    mx.save_safetensors(str(fresh / "model.safetensors"), flatten(weights), {"format": "mlx"})
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def weights(folder: Path) -> dict[str, Any]:
    """The weights of the model in `folder`."""
    tree: dict[str, Any] = tree_unflatten(list(_load(folder / "model.safetensors").items()))
    return tree


def save_head(weights: dict[str, Any], folder: Path) -> None:
    """Write the head beside the main model, under the names of a layer after its last one."""
    layer = network.config("main")["num_hidden_layers"]
    arrays = {
        name.replace(".0.", f".{layer}.", 1): array for name, array in flatten(weights).items()
    }
    partial = folder / f"partial-{HEAD}"
    mx.save_safetensors(str(partial), arrays, {"format": "mlx"})
    partial.replace(folder / HEAD)


def head(folder: Path) -> dict[str, Any]:
    """The weights of the head beside the main model, as `head.unrolled` takes them."""
    layer = network.config("main")["num_hidden_layers"]
    arrays = _load(folder / HEAD)
    named = [(name.replace(f".{layer}.", ".0.", 1), array) for name, array in arrays.items()]
    tree: dict[str, Any] = tree_unflatten(named)
    return tree


def save_schemas(file: Path) -> None:
    """Write the record shapes for those who want to constrain the model's JSON."""
    text = json.dumps(records.catalogue(), indent=2, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def _load(file: Path) -> dict[str, mx.array]:
    return cast("dict[str, mx.array]", mx.load(str(file)))


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
