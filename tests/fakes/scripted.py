"""A model whose next token is whatever a test says, seen through its real KV cache.

Its one layer stores the token ids themselves as keys. A forward pass reads the whole
history back out of the cache, so a cache that was rewound wrongly shows in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache

Script = Callable[[tuple[int, ...]], Sequence[int] | dict[int, float]]
"""From the history to the next tokens, best first, or to their logits."""


class ScriptedModel(nn.Module):
    """``script(history)`` ranks the next tokens: logits 0, -1, -2, ...; all others -50.

    ``passes`` counts forward passes and ``fed`` records what each was given.
    """

    def __init__(
        self,
        vocab_size: int,
        script: Script,
        make_cache: Callable[[], list[Any]] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.vocab_size = vocab_size
        self.script = script
        self.layers = [None]
        self._make_cache = make_cache or (lambda: [KVCache()])
        self.fed: list[list[int]] = []

    @property
    def passes(self) -> int:
        return len(self.fed)

    def make_cache(self) -> list[Any]:
        return self._make_cache()

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        caches = cache if cache is not None else self.make_cache()
        keys = inputs.astype(mx.float32)[:, None, :, None]
        held, _ = caches[0].update_and_fetch(keys, keys)
        rows = np.array(held[:, 0, :, 0]).astype(int).tolist()
        count = inputs.shape[1]
        self.fed.append(np.array(inputs).tolist()[0])
        return mx.array(np.stack([self._logits(row, count) for row in rows]))

    def _logits(self, history: list[int], count: int) -> np.ndarray:
        out = np.full((count, self.vocab_size), -50.0, dtype=np.float32)
        for i in range(count):
            known = tuple(history[: len(history) - count + 1 + i])
            wanted = self.script(known)
            if not isinstance(wanted, dict):
                wanted = {token: -float(rank) for rank, token in enumerate(wanted)}
            for token, logit in wanted.items():
                out[i, token] = logit
        return out


def reciting(prompt_length: int, tokens: Sequence[int], end: int) -> Script:
    """A script that recites ``tokens`` after a prompt of ``prompt_length``, then ``end``."""

    def script(history: tuple[int, ...]) -> Sequence[int]:
        position = len(history) - prompt_length
        return [tokens[position] if 0 <= position < len(tokens) else end]

    return script
