"""Adaptive-p and weak bans in generations: the text does not depend on how it is generated."""

from __future__ import annotations

from typing import Any

import pytest

import mlxgen

PROMPTS = ["Once upon a time", "The red fox", "On Monday"]
OPTIONS: dict[str, Any] = {
    "temperature": 1.0,
    "min_p": 0.02,
    "adaptive_target": 0.4,
    "max_tokens": 40,
    "seed": 5,
}


@pytest.fixture(scope="module")
def lm() -> mlxgen.LanguageModel:
    return mlxgen.load()


def test_a_batch_drafts_and_reports_change_no_text(lm: mlxgen.LanguageModel) -> None:
    alone = [lm.generate(prompt, draft="off", **OPTIONS).text for prompt in PROMPTS]
    assert [lm.generate(prompt, draft="ngram", **OPTIONS).text for prompt in PROMPTS] == alone
    assert [result.text for result in lm.batch(PROMPTS, **OPTIONS).run()] == alone
    told = [lm.generate(p, top_logprobs=2, top_candidates=3, **OPTIONS).text for p in PROMPTS]
    assert told == alone
    plain = {**OPTIONS, "adaptive_target": -1}
    assert [lm.generate(prompt, **plain).text for prompt in PROMPTS] != alone


def test_forced_runs_count_for_nothing_however_they_are_appended(lm: mlxgen.LanguageModel) -> None:
    spec = mlxgen.Regex("(the|a) (fox|cat|bear) and (the|a) (fox|cat|bear) sat on (a|the) mat")
    options = {**OPTIONS, "min_p": 0}
    texts = {
        lm.generate("Once upon a time", filters=[spec], top_logprobs=wanted, **options).text
        for wanted in (None, 1)
    }
    assert len(texts) == 1


def test_the_tokens_have_the_probability_that_is_aimed_at(lm: mlxgen.LanguageModel) -> None:
    found = {}
    for target in (0.2, 0.9):
        given = {**OPTIONS, "adaptive_target": target, "max_tokens": 120, "ignore_eos": True}
        chunks = lm.generate("Once upon a time", top_logprobs=0, **given).chunks
        probabilities = [2.718281828**chunk.logprob for chunk in chunks if chunk.logprob]
        found[target] = sum(probabilities) / len(probabilities)
    assert found[0.2] < found[0.9] - 0.1


def test_a_weak_ban_lets_its_share_of_the_matches_stand(lm: mlxgen.LanguageModel) -> None:
    def count(strength: float) -> int:
        prompts = ["Tell me a story about a fox."] * 24
        options: Any = {"temperature": 1.0, "max_tokens": 60, "ignore_eos": True, "seed": 1}
        each: Any = [{"seed": seed} for seed in range(24)]
        results = lm.batch(
            prompts, each=each, banned=[" the"], ban_strength=strength, **options
        ).run()
        return sum(result.text.count(" the") for result in results)

    never, some, always = count(0), count(0.5), count(1)
    assert always == 0 and 0 < some < never
