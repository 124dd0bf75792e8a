"""The head of a model computes what is wanted of a pass, and everybody else's calls are as ever."""

from __future__ import annotations

import copy
from threading import Thread
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from benchmarks.architectures import ARCHITECTURES
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.lora import LoRALinear

from mlxgen import LanguageModel
from mlxgen.engine.kv.seam import Seam, Wanted
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import VOCAB, random_model
from tests.fakes.scripted import ScriptedModel

TOKENS = mx.array([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])
WANTED = Wanted([5, 3], [2, 1])
TIED = ("llama", "gemma3_text", "qwen3_next")


class Watched:
    """A model with a seam."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.seam = Seam.of(model, self.make)

    def make(self) -> list[Any]:
        return list(make_prompt_cache(self.model))

    def whole(self) -> mx.array:
        logits: mx.array = self.model(TOKENS, cache=self.make())
        return logits

    def check(self) -> list[mx.array]:
        """The rows that are wanted are those of all; returns the states of the pass."""
        states: list[mx.array] = []
        caches = self.make()
        got = self.seam.run(lambda: self.model(TOKENS, cache=caches), WANTED, states)
        rows = self.whole()
        expected = mx.stack([rows[0, 3], rows[0, 4], rows[1, 2]])
        np.testing.assert_allclose(np.array(got), np.array(expected), atol=2e-4, rtol=2e-3)
        assert rows.shape == (2, 5, VOCAB)
        return states


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_of_every_architecture_the_wanted_rows_are_computed_from_their_states(name: str) -> None:
    (states,) = Watched(random_model(name)).check()
    assert states.shape == (2, 5, 64)


@pytest.mark.parametrize("name", TIED)
def test_a_head_that_is_the_embedding_as_well_embeds_as_before(name: str) -> None:
    model = random_model(name, tie_word_embeddings=True)
    before = model(TOKENS)
    watched = Watched(model)
    assert len(watched.check()) == 1
    np.testing.assert_array_equal(np.array(model(TOKENS)), np.array(before))


def test_quantised_and_adapted_heads_are_found_as_a_whole() -> None:
    model = random_model("llama")
    nn.quantize(model, 32, 8)
    assert len(Watched(model).check()) == 1
    model = random_model("llama")
    model.lm_head = LoRALinear.from_base(model.lm_head)
    model.lm_head.lora_b = mx.random.normal(model.lm_head.lora_b.shape)
    assert len(Watched(model).check()) == 1


def test_a_model_keeps_its_modules_and_their_parameters() -> None:
    model = random_model("llama")
    tree, shown = model.parameters(), repr(model)
    lm = LanguageModel(model, alphabet_tokenizer())
    assert lm.generate([1, 2, 3], max_tokens=3, ignore_eos=True).tokens
    assert lm.model is model and repr(model) == shown and isinstance(model.lm_head, nn.Linear)
    assert model.parameters().keys() == tree.keys()
    assert Seam.of(model, lm.make_cache) is Seam.of(model, lm.make_cache)
    assert Watched(copy.deepcopy(model)).check()
    nn.quantize(model, 32, 8)  # it has a new head then, without a seam
    assert not Watched.check(_with_seam(model, lm))


def _with_seam(model: Any, lm: LanguageModel) -> Watched:
    watched = Watched.__new__(Watched)
    watched.model, watched.seam = model, lm.runner().seam
    return watched


def test_without_a_head_the_rows_are_taken_from_all() -> None:
    class Reshaping(nn.Module):
        """What follows on its head needs all rows."""

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.inner = random_model("llama")
            self.layers = self.inner.layers

        def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
            logits: mx.array = self.inner(inputs, cache)
            return logits + mx.zeros((*inputs.shape, 1))

    kind = type(random_model("llama").lm_head)
    model = Reshaping()
    assert not Watched(model).check() and type(model.inner.lm_head) is kind
    scripted = ScriptedModel(VOCAB, lambda history: [sum(history) % VOCAB])
    assert not Watched(scripted).check()


def test_a_thread_that_calls_the_model_meanwhile_gets_all_rows() -> None:
    watched = Watched(random_model("llama"))
    model, shapes = watched.model, []

    def call() -> mx.array:
        other = Thread(target=lambda: shapes.append(model(TOKENS).shape))
        other.start()
        other.join()
        logits: mx.array = model(TOKENS)
        return logits

    got = watched.seam.run(call, WANTED)
    assert got.shape == (3, VOCAB) and shapes == [(2, 5, VOCAB)]


def test_a_pass_that_fails_leaves_the_model_as_it_was() -> None:
    watched = Watched(random_model("llama"))

    def fail() -> mx.array:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        watched.seam.run(fail, WANTED)
    assert watched.whole().shape == (2, 5, VOCAB)
