"""What drafts from a model's own hidden states."""

from __future__ import annotations

from typing import Any, Protocol, cast

import mlx.core as mx

from ..kv.layers import LayerCache


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

    def trunk(
        self, inputs: mx.array, cache: list[LayerCache], **given: Any
    ) -> tuple[mx.array, mx.array]:
        """A pass of the model itself: its states [rows, n, width], and its logits of them."""

    def logits(self, states: mx.array) -> mx.array:
        """Of states that a call gave [rows, n, width], what comes next [rows, n, vocab]."""


class Told:
    """A model whose passes add their states to ``states``, as a ``predictor`` knows them."""

    def __init__(self, model: Any, predictor: Predictor, states: list[mx.array]) -> None:
        self._model, self._predictor, self._states = model, predictor, states

    def __call__(self, inputs: mx.array, cache: list[LayerCache], **given: Any) -> mx.array:
        states, logits = self._predictor.trunk(inputs, cache, **given)
        self._states.append(states)
        return logits

    def embed_inputs(self, *given: Any, **more: Any) -> mx.array:
        """As the model embeds tokens and images."""
        return cast(mx.array, self._model.embed_inputs(*given, **more))
