"""Training: it learns, by a rate that rises, stays and falls."""

from __future__ import annotations

from demo_model import network, train
from demo_model.batches import steps
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
