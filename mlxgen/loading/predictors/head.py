"""A multi-token-prediction head: a decoder layer that drafts from a model's hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from .. import mlx_lm_first  # noqa: F401

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from .layout import Layout


class Head(nn.Module):
    """The weights of a head. ``block`` is a model of mlx-lm's of one layer, without its ends."""

    def __init__(self, block: Any, layout: Layout) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        width, eps = block.norm.weight.size, block.norm.eps
        self.token_norm = nn.RMSNorm(width, eps)
        self.state_norm = nn.RMSNorm(width, eps)
        self.projection = nn.Linear(2 * width, width, bias=False)
        self.norm = nn.RMSNorm(width, eps)
        self.block = block
        block.embed_tokens, block.norm = nn.Identity(), nn.Identity()
        if hasattr(block, "ssm_idx"):
            block.ssm_idx = None  # no layer with a recurrent state
        self._state_first, self._raw_states = layout.state_first, layout.raw_states

    def __call__(self, embedded: mx.array, states: mx.array, cache: list[Any]) -> mx.array:
        if self._raw_states:  # the lengths of states do not matter to a norm
            states = states / self.norm.weight
        pair = [self.token_norm(embedded), self.state_norm(states)]
        if self._state_first:
            pair.reverse()
        made = self.block(self.projection(mx.concatenate(pair, axis=-1)), cache)
        return cast(mx.array, self.norm(made))


class HeadPredictor:
    """A head with the embedding and the output head of its model: a ``Predictor``."""

    def __init__(self, head: Head, trunk: Any, make_cache: Callable[[], list[Any]]) -> None:
        self._head, self.make_cache = head, make_cache
        self._trunk = text = inner_of(trunk)
        self._embed = text.model.embed_tokens
        self._logits = getattr(text, "lm_head", None) or self._embed.as_linear
        module: nn.Module = head
        weights = cast(list[tuple[str, mx.array]], tree_flatten(module.parameters()))
        self.nbytes = sum(array.nbytes for _, array in weights)
        self.width = int(head.norm.weight.size)

    def __call__(self, tokens: mx.array, states: mx.array, cache: list[Any]) -> mx.array:
        return self._head(self._embed(tokens), states, cache)

    def trunk(self, inputs: mx.array, cache: list[Any], **given: Any) -> tuple[mx.array, mx.array]:
        states = self._trunk.model(inputs, cache=cache, **given)
        return states, self.logits(states)

    def logits(self, states: mx.array) -> mx.array:
        return cast(mx.array, self._logits(states))


def inner_of(model: Any) -> Any:
    """The text model of an mlx-lm model, which is itself, or is wrapped for pictures."""
    return getattr(model, "language_model", model)
