"""DRY in a generation: a token that would continue a repetition is not drawn, however it is run."""

from __future__ import annotations

from typing import Any

import pytest

import mlxgen
from mlxgen.engine import Options
from mlxgen.sampling import Repetitions

PROMPT = "the red fox and the red fox and the red fox and the"
DRY: dict[str, Any] = {"dry_multiplier": 100.0, "max_tokens": 40, "ignore_eos": True, "seed": 5}


@pytest.fixture(scope="module")
def lm() -> mlxgen.LanguageModel:
    return mlxgen.load()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0},
        {"draft": "ngram"},
        {"dry_allowed_length": 1, "top_k": 40, "temperature": 0.7},
        {"dry_penalty_last_n": 20, "dry_allowed_length": 1, "dry_sequence_breakers": []},
        {"repetition_penalty": 1.1, "top_logprobs": 2},
    ],
)
def test_no_repetition_is_continued(lm: mlxgen.LanguageModel, options: dict[str, Any]) -> None:
    given = {**DRY, **options}
    tokens = lm.generate(PROMPT, **given).tokens
    assert len(tokens) == 40
    history = lm.vocabulary.encode(PROMPT)
    settings = Options.of(given).sampling
    repetitions = Repetitions(history, settings, lm.vocabulary.piece)
    stopped = 0
    for token in tokens:
        penalties = repetitions.penalties()
        if penalties is not None:
            stopped += 1
            assert token not in penalties[0], lm.vocabulary.decode(history)
        repetitions.advance(token)
        history.append(token)
    assert stopped


def test_many_at_once_and_with_what_was_kept_of_the_prompt_read_the_same(
    lm: mlxgen.LanguageModel,
) -> None:
    given: list[Any] = [{**DRY, "seed": seed, "temperature": 0.8 * (seed % 2)} for seed in range(4)]
    alone = [lm.generate(PROMPT, **options).text for options in given]
    texts = [""] * 4
    for index, chunk in lm.batch([PROMPT] * 4, each=given):
        texts[index] += chunk.text
    assert texts == alone
