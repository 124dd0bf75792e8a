"""Training and the prediction head: both learn, and the head drafts as it was trained."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from demo_model import corpus, head, network, package, train
from demo_model.batches import steps
from demo_model.corpus import Example
from demo_model.train import flatten, new_optimiser, update
from mlx_lm.models.cache import KVCache
from mlx_lm.models.llama import ModelArgs, TransformerBlock
from rich.console import Console
from tokenizers import Tokenizer


def test_a_training_learns(words: Tokenizer) -> None:
    plan, model = train.Plan("draft", 5, 6, 2, 256), network.new_model("draft", 5)
    batch = next(steps(words, 5, tokens=256, copy_steps=2))[0]
    before = network.loss(model, batch).item()
    weights = train.train(plan, model, network.loss, words, Console(quiet=True))
    model.load_weights(list(train.flatten(weights).items()))
    assert network.loss(model, batch).item() < before  # type: ignore[operator]
    rates = [train.rate_at(step, 1000) for step in (0, 300, 999)]
    assert rates[0] < 0.05 and rates[1] == 1.0 and rates[2] < 0.02


def test_muon_has_matrices_of_layers_and_not_the_embedding() -> None:
    optimiser = train.new_optimiser(network.new_model("draft", 1))
    muon, adam = (train.flatten(state) for state in optimiser.state["states"])
    assert any("q_proj" in name for name in muon)
    assert any("embed_tokens" in name for name in adam)
    assert not any("embed_tokens" in name for name in muon)


@pytest.fixture(scope="module")
def both(demo: Path) -> tuple[Any, Any]:
    """The trunk and its head."""
    return package.model(demo / "model"), package.head(demo / "model")


def tokens_of(pair: tuple[Any, Any], example: Example) -> tuple[list[int], int]:
    """The tokens of an example, and how many of them are its prompt."""
    prompt, target = (
        pair[1].encode(text, add_special_tokens=False) for text in (example.prompt, example.target)
    )
    return [*prompt, *target], len(prompt)


def test_its_file_is_where_mlx_lm_does_not_look_and_names_tensors_as_published_ones(
    both: tuple[Any, Any], demo: Path, tmp_path: Path
) -> None:
    file = demo / "model" / package.HEAD
    assert file.stat().st_size < 1_000_000
    assert file not in set((demo / "model").glob("model*.safetensors"))
    arrays: Any = mx.load(str(file))
    block = TransformerBlock(ModelArgs.from_dict(network.config("main")), 0)
    names = {f"model.layers.5.{name}" for name, _ in flatten(block.parameters()).items()}
    own = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
    assert set(arrays) == names | {f"model.layers.5.{name}.weight" for name in own}
    assert {array.dtype for array in arrays.values()} == {mx.float32}
    package.save_head(both[1].parameters(), tmp_path)
    saved: Any = mx.load(str(tmp_path / package.HEAD))
    assert all(mx.array_equal(saved[name], array) for name, array in arrays.items())


def test_training_sees_what_a_draft_sees(
    pair: tuple[Any, Any], both: tuple[Any, head.Head]
) -> None:
    """Entry by entry, with mlx-lm's own layer and cache: a draft of four tokens from each place."""
    trunk, made = both
    tokens, _ = tokens_of(pair, corpus.example("raw stories", Random(3)))
    given = mx.array(tokens[:24])[None]
    states = pair[0].model(given)
    depths = head.unrolled(trunk, made, given, states)

    def entry(place: int, before: mx.array, cache: Any) -> mx.array:
        embedded = pair[0].model.embed_tokens(given[:, place : place + 1])
        return made.layer.state(embedded, before, None, cache)

    cache = KVCache()
    before = mx.zeros_like(states[:, :1])
    for place in range(20):
        state = entry(place, before, cache)
        before = states[:, place : place + 1]
        for depth, expected in enumerate(depths):
            if depth > 0:
                state = entry(place + depth, state, cache)
            close = mx.allclose(state, expected[:, place + depth : place + depth + 1], 1e-3, 1e-3)
            assert close.item(), (place, depth)
        cache.trim(len(depths) - 1)


def test_a_fresh_head_learns(words: Tokenizer, both: tuple[Any, Any]) -> None:
    trunk, _ = both
    batch = next(steps(words, 2, tokens=128, copy_steps=1))[0]
    fresh = head.new_head(1)
    optimiser = new_optimiser(fresh)
    step = nn.value_and_grad(fresh, partial(head.loss, trunk))
    losses = []
    for _ in range(4):
        value, gradients = step(fresh, batch)
        update(optimiser, fresh, gradients, 0.02, 1e-3)
        losses.append(float(value))
    assert losses == sorted(losses, reverse=True) and losses[-1] > 0
