"""Which draft models a model takes: those whose tokens mean the same, as far as both have them."""

from __future__ import annotations

from typing import Any

import pytest

from mlxgen import LanguageModel
from tests.fakes import byte_level_tokenizer
from tests.fakes.checkpoints import tiny_config, tiny_model


@pytest.mark.parametrize("main_has", ["more", "fewer"])
def test_a_draft_may_know_a_few_added_tokens_more_or_less_and_end_otherwise(main_has: str) -> None:
    """Its model may even have no room for the others, which the prompt may hold."""
    small, large = byte_level_tokenizer(), byte_level_tokenizer()
    large._tokenizer.add_tokens([f"<tool {i}>" for i in range(9)])
    small.eos_token_ids = {5}
    if main_has == "fewer":
        small, large = large, small
    lm = LanguageModel(tiny_model(tiny_config(len(large))), large)
    draft = LanguageModel(tiny_model(tiny_config(len(small))), small)
    prompt = [1, 2, len(large) - 1, 3, len(large) - 2]
    for seed in range(3):
        options: dict[str, Any] = {"max_tokens": 30, "temperature": 1.0, "seed": seed}
        found = lm.generate(prompt, draft=draft, ignore_eos=True, **options)
        assert found.tokens == lm.generate(prompt, draft="off", ignore_eos=True, **options).tokens
        assert found.usage.drafted_tokens
