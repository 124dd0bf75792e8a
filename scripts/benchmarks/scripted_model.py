"""An architecture for mlx-lm that follows a script; this file is copied into a model's folder.

The script is a list of ``[pattern, answer]`` in the folder's ``script.json``: the model gives the
answer of the first pattern found in the text of its prompt. Its first layer stores the token ids
themselves, so that it can read its history; the others are those of an ``inner`` model, if there is
one, whose caches it fills and whose logits it ignores.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache, make_prompt_cache
from tokenizers import Tokenizer


class ModelArgs(NamedTuple):
    """The values in the folder's ``config.json``."""

    folder: str
    vocab_size: int
    eos_token_id: int
    inner: dict[str, Any] | None

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> ModelArgs:
        return cls(*(config[name] for name in cls._fields))


class Model(nn.Module):
    """The model; it begins an answer only at the end of its input."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers = [nn.Linear(1, 1, bias=False)]
        self.inner = None
        if args.inner is not None:
            module = importlib.import_module(f"mlx_lm.models.{args.inner['model_type']}")
            self.inner = module.Model(module.ModelArgs.from_dict(args.inner))
        self._args = args
        self._tokenizer = Tokenizer.from_file(f"{args.folder}/tokenizer.json")
        self._script = json.loads(Path(args.folder, "script.json").read_text(encoding="utf-8"))
        self._begun: list[tuple[list[int], list[int]]] = []  # prompts, and their answers

    def make_cache(self) -> list[Any]:
        return [KVCache(), *(make_prompt_cache(self.inner) if self.inner is not None else ())]

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        layer, *inner = cache or self.make_cache()
        ids = inputs.astype(mx.float32)[:, None, :, None]
        keys, _ = layer.update_and_fetch(ids, ids)
        logits = np.full((*inputs.shape, self._args.vocab_size), -50.0, dtype=np.float32)
        for row, history in enumerate(np.array(keys)[:, 0, :, 0].astype(int).tolist()):
            logits[row, :, self._next(history)] = 0
        said = mx.array(logits)
        return said if self.inner is None else said + 0 * self.inner(inputs, inner)

    def _next(self, history: list[int]) -> int:
        for prompt, answer in reversed(self._begun):
            said = history[len(prompt) :]
            goes_on = len(said) < len(answer) and said == answer[: len(said)]
            if goes_on and history[: len(prompt)] == prompt:
                return answer[len(said)]
        text = self._tokenizer.decode(history, skip_special_tokens=False)
        found = next(answer for pattern, answer in self._script if re.search(pattern, text))
        ids = self._tokenizer.encode(found, add_special_tokens=False).ids
        self._begun.append((history, [*ids, self._args.eos_token_id]))
        return (ids or [self._args.eos_token_id])[0]
