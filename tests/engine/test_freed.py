"""Nothing keeps a model that nobody holds: neither its weights nor its vocabulary."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pytest

import mlxgen
from mlxgen import LanguageModel
from tests.fakes import byte_level_tokenizer
from tests.fakes.checkpoints import tiny_config, tiny_model

USES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grammar": {"filters": [mlxgen.Regex("[a-z ]*")]},
    "schema": {"filters": [mlxgen.JsonSchema({"type": "object"})], "close_json": True},
    "choice": {"filters": [mlxgen.Choice(["the", "so"])]},
    "drafts": {"draft": "ngram"},
    "bans and stops": {"banned": ["the"], "stop": ["x"]},
    "healing": {"heal": True},
}


@pytest.mark.parametrize("use", USES)
def test_a_model_goes_with_its_vocabulary(use: str) -> None:
    tokenizer = byte_level_tokenizer()
    lm = LanguageModel(tiny_model(tiny_config(len(tokenizer))), tokenizer)
    lm.generate("so sad", max_tokens=3, **USES[use])
    lm.generate([{"role": "user", "content": "so"}], max_tokens=2)
    held = [ref(each) for each in (lm, lm.model, lm.vocabulary, lm.tokenizer)]
    del lm, tokenizer
    gc.collect()
    assert [each() for each in held] == [None] * 4
