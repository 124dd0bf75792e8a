"""A predictor that foresees nothing, and whose cache shows what it was told."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from mlxgen import LanguageModel
from mlxgen.engine.drafts.drafts import Drafts
from mlxgen.engine.drafts.head import HeadDrafter
from mlxgen.engine.kv.slots import Group
from mlxgen.engine.options import Options
from mlxgen.loading.predictor import inner_of


class Mirror:
    """Its entries are the states and the tokens; it expects each token once more."""

    nbytes = 0

    def __init__(self, width: int, vocab: int, model: Any) -> None:
        self.width, self._vocab = width, vocab
        self._model = inner_of(model)

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, tokens: mx.array, states: mx.array, cache: list[Any]) -> mx.array:
        told = mx.broadcast_to(tokens[..., None].astype(states.dtype), states.shape)
        cache[0].update_and_fetch(states[:, None], told[:, None])
        return told

    def trunk(self, inputs: mx.array, cache: list[Any], **given: Any) -> tuple[mx.array, mx.array]:
        inner = self._model["model" if "model" in self._model else "backbone"]
        states = inner(inputs, cache=cache, **given)
        head = getattr(self._model, "lm_head", None) or inner.embed_tokens.as_linear
        return states, head(states)

    def logits(self, states: mx.array) -> mx.array:
        return -mx.abs(mx.arange(self._vocab) - states[..., :1])


def draft_with_head(lm: LanguageModel, count: int = 3) -> None:
    """Have the head of a model draft everything but what is not to be drafted."""
    assert lm.runtime.predictor is not None
    predictor = lm.runtime.predictor

    def drafts_for(options: Options, owner: str = "") -> Drafts:
        if options.draft == "off":
            return Drafts()
        return Drafts([lm.runtime._head_drafter(predictor)], count, wanted=True)

    lm.runtime.drafts_for = drafts_for  # type: ignore[method-assign]


def check_entries(lm: LanguageModel, drafts: Drafts, history: list[int]) -> int:
    """Those that a ``Mirror`` made of the trunk's states are of the history's tokens, each with the
    state before it; returns how many there are."""
    (drafter,) = drafts.drafters
    assert isinstance(drafter, HeadDrafter)
    first = drafter._base
    common = min(drafter._exact, drafter._kv.common(drafter._own), len(history) - first)
    if common <= 0:
        return 0
    slot = drafter._kv.slot
    keys, values = slot.group.layers[0].arrays
    assert lm.runtime.predictor is not None
    fresh = Group(lm.runtime.make_cache)
    fresh.add(len(history))
    trunk: Any = lm.runtime.predictor.trunk
    states, _ = fresh.run(trunk, mx.array([history]), [len(history)])
    before = np.concatenate([np.zeros((1, states.shape[-1])), np.array(states[0])])
    got = np.array(keys[slot.index, 0, :common])
    np.testing.assert_allclose(got, before[first : first + common], atol=0.05)
    tokens = np.array(values[slot.index, 0, :common, 0]).astype(int).tolist()
    assert tokens == history[first : first + common]
    return common
