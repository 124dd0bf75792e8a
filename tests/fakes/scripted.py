"""A model whose next token is whatever a test says, seen through its real KV cache.

Its one layer stores the token ids themselves, as keys or in a recurrent state. A forward
pass reads the whole history back out of the cache, so a cache that was rewound wrongly shows
in the text. It runs rows alone and side by side: keys come with an ``offset`` that says how
long each row is, and a state begins with its length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import ArraysCache, KVCache

STATE = 1024  # tokens that a recurrent state has room for

Script = Callable[[tuple[int, ...]], Sequence[int] | dict[int, float]]
"""From the history to the next tokens, best first, or to their logits."""


class ScriptedModel(nn.Module):
    """``script(history)`` ranks the next tokens: logits 0, -1, -2, ...; all others -50.

    ``passes`` counts forward passes, ``fed`` records what the first row of each was given,
    and ``rows`` what all of them were.
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
        self.rows: list[list[list[int]]] = []

    @property
    def passes(self) -> int:
        return len(self.rows)

    @property
    def fed(self) -> list[list[int]]:
        return [rows[0] for rows in self.rows]

    def forget(self) -> None:
        """Count passes from here on."""
        self.rows.clear()

    def make_cache(self) -> list[Any]:
        return self._make_cache()

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        layer = (cache if cache is not None else self.make_cache())[0]
        self.rows.append(np.array(inputs).tolist())
        histories = _recurrent if isinstance(layer, ArraysCache) else _attention
        count = inputs.shape[1]
        return mx.array(np.stack([self._logits(row, count) for row in histories(layer, inputs)]))

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


def _attention(layer: Any, inputs: mx.array) -> list[list[int]]:
    """The history of each row, from keys [rows, 1, places, 1]."""
    keys = inputs.astype(mx.float32)[:, None, :, None]
    held, _ = layer.update_and_fetch(keys, keys)
    places = np.array(held[:, 0, :, 0]).astype(int)
    lengths = np.broadcast_to(np.array(layer.offset), len(places)).tolist()
    return [row[:length].tolist() for row, length in zip(places, lengths, strict=True)]


def _recurrent(layer: ArraysCache, inputs: mx.array) -> list[list[int]]:
    """The history of each row, from states [rows, 1 + STATE]: a length, then tokens."""
    tokens = np.array(inputs)
    rows, count = tokens.shape
    state = np.zeros((rows, 1 + STATE), np.int32) if layer[0] is None else np.array(layer[0])
    for row, new in zip(state, tokens, strict=True):
        row[1 + row[0] : 1 + row[0] + count] = new
        row[0] += count
    layer[0] = mx.array(state)
    return [row[1 : 1 + row[0]].tolist() for row in state]
