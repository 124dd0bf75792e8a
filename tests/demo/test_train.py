"""Training: it learns, and one that was interrupted is the one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from demo_model import network, train
from demo_model.batches import Batches
from rich.console import Console
from tokenizers import Tokenizer

PLAN = train.Plan("draft", 5, 6, 2, 256)


def test_a_training_that_was_interrupted_gives_what_it_gives_at_once(
    pair: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = Tokenizer.from_str(pair[1].backend_tokenizer.to_str())

    def trained(name: str, calls: int | None = None) -> dict[str, mx.array]:
        """The weights after a training that may make so many passes."""
        fresh = network.new_model("draft", 5)

        def loss(model: Any, batch: Any) -> mx.array:
            nonlocal calls
            if calls is not None:
                calls -= 1
                if calls < 0:
                    raise InterruptedError
            return network.loss(model, batch)

        console = Console(quiet=True)
        weights = train.train(PLAN, fresh, loss, words, tmp_path / name, console)
        return train.flatten(weights)

    monkeypatch.setattr(train, "_SAVE_EVERY", 2)
    whole = trained("whole.safetensors")
    with pytest.raises(InterruptedError):
        trained("parts.safetensors", 9)  # in the fifth step
    for name, weight in trained("parts.safetensors").items():
        assert mx.allclose(weight, whole[name], 1e-4, 1e-5), name

    # It has learnt, by a rate that rises, stays and falls
    model, batch = network.new_model("draft", 5), Batches(words, 5, tokens=256, copy_steps=2)
    before = network.loss(model, batch.part(0, 0))
    model.load_weights(list(whole.items()))
    assert network.loss(model, batch.part(0, 0)).item() < before.item()  # type: ignore[operator]
    rates = [train.rate_at(step, 1000) for step in (0, 300, 999)]
    assert rates[0] < 0.05 and rates[1] == 1.0 and rates[2] < 0.02
    assert train.rate_at(100, 1000) == train.rate_at(100, 2000)


def test_muon_has_matrices_of_layers_and_not_the_embedding() -> None:
    optimiser = train.new_optimiser(network.new_model("draft", 1))
    muon, adam = (train.flatten(state) for state in optimiser.state["states"])
    assert any("q_proj" in name for name in muon)
    assert any("embed_tokens" in name for name in adam)
    assert not any("embed_tokens" in name for name in muon)
