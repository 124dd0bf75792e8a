"""What drafts from a model's own hidden states."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from ..kv import LayerCache


class Predictor(Protocol):
    """A multi-token-prediction head: of a token and the state before it, what comes after it.

    It makes the states that it reads in turn, so it drafts any number of tokens, one after another.
    Entry ``i`` of its caches is of token ``i`` of the history and of the trunk's state that this
    token was drawn from, which is that of token ``i - 1``, as the model's own head reads it: after
    the final norm. The first token has a state of zeros.
    """

    width: int
    """How many numbers a state has."""
    nbytes: int
    """The bytes of its own weights; embedding and output head are those of the model."""

    def make_cache(self) -> list[LayerCache]:
        """Empty caches for one sequence, one for each of its layers."""

    def __call__(self, tokens: mx.array, states: mx.array, cache: list[LayerCache]) -> mx.array:
        """The states after ``tokens`` [rows, n], of those before each of them [rows, n, width]."""

    def logits(self, states: mx.array) -> mx.array:
        """Of states that a call gave [rows, n, width], what comes next [rows, n, vocab]."""
