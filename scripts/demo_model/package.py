"""The model folders as they are shipped.

Owns the files of a model folder that are not the tokenizer's. A folder is written beside its place
and then moved there, so that nobody ever sees half a model.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import Tokenizer

from demo_model import network, records, tokenizer
from demo_model.batches import token_id
from demo_model.chat import END, END_OF_TEXT


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
    arrays = dict(tree_flatten(weights))
    mx.save_safetensors(str(fresh / "model.safetensors"), arrays, {"format": "mlx"})
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def save_schemas(file: Path) -> None:
    """Write the record shapes for those who want to constrain the model's JSON."""
    text = json.dumps(records.catalogue(), indent=2, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
