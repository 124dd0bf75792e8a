"""What is reported of draws in generations."""

from __future__ import annotations

import math
from typing import Any

import pytest

import mlxgen
from mlxgen import Chunk, PostSamplingResult, Regex, Session
from tests.fakes.speaking import PROMPT, Speaker

LONG: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "seed": 5}
ADAPTIVE: dict[str, Any] = {**LONG, "temperature": 1.0, "min_p": 0.02, "adaptive_target": 0.4}


@pytest.fixture(scope="module")
def lm() -> mlxgen.LanguageModel:
    return mlxgen.load()


# ---- what a token was drawn from -----------------------------------------------------------------

A, B, C, D = b"abcd"
ODDS = {A: 0.5, B: 0.25, C: 0.125, D: 0.125}


def chancy() -> Speaker:
    """Says any of four letters, with the same odds everywhere."""
    logits = {token: math.log(odds) for token, odds in ODDS.items()}
    return Speaker([], lambda self, generated: logits)


def chunks_of(**options: Any) -> list[Chunk]:
    return list(chancy().lm.stream(PROMPT, **{"max_tokens": 4, **options}))


def test_candidates_are_those_that_can_be_drawn_and_top_the_models_own() -> None:
    def no_b(result: PostSamplingResult) -> None:
        result.resample, result.exclude = result.attempt == 0, [B]

    given: list[tuple[dict[str, Any], list[tuple[int, float]]]] = [
        ({"top_candidates": 2}, [(A, 0.5), (B, 0.25)]),
        ({"top_candidates": 2, "filters": Regex("[bcd]{4}")}, [(B, 0.5), (C, 0.25)]),
        ({"top_candidates": 128, "top_k": 2, "temperature": 0.5}, [(A, 0.8), (B, 0.2)]),
        ({"top_candidates": 3, "hooks": no_b}, [(A, 2 / 3), (C, 1 / 6), (D, 1 / 6)]),
        ({"top_candidates": 3, "banned": "a", "temperature": 0}, [(B, 0.5), (C, 0.25), (D, 0.25)]),
        ({}, []),
    ]
    for options, expected in given:
        for temperature in (0.0, 1.0):
            own = {"temperature": temperature, "seed": 1, "max_tokens": 1, **options}
            (chunk,) = chunks_of(top_logprobs=2, **own)
            assert [token for token, _ in chunk.candidates] == [token for token, _ in expected]
            probs = [prob for _, prob in expected]
            assert [each.prob for each in chunk.candidates] == pytest.approx(probs, abs=0.01)
            assert [each.token for each in chunk.top] == [A, B]
            logprobs = [math.log(0.5), math.log(0.25)]
            assert [each.logprob for each in chunk.top] == pytest.approx(logprobs, abs=0.01)


def test_a_token_that_was_not_drawn_stands_alone() -> None:
    chunks = chunks_of(filters=Regex("xy[ab]"), top_candidates=5)
    assert [chunk.forced for chunk in chunks] == [True, True, False]
    assert [chunk.candidates for chunk in chunks[:2]] == [((ord("x"), 1.0),), ((ord("y"), 1.0),)]
    assert [other.token for other in chunks[2].candidates] == [A, B]
    speaker = chancy()
    session = Session(speaker.tokenizer, top_candidates=2, vocab_size=speaker.lm.vocab_size)
    assert session.push_token(D).candidates == ((D, 1.0),)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_and_a_draft_report_what_one_alone_reports(temperature: float) -> None:
    own = {**LONG, "top_candidates": 3, "max_tokens": 12, "temperature": temperature}
    alone = [chunk.candidates for chunk in chunks_of(**own)]
    each: list[Any] = [own, {"max_tokens": 12}, {**own, "top_candidates": 1, "top_k": 1}]
    batch = chancy().lm.batch([PROMPT] * 3, each=each)
    found = [chunk.candidates for index, chunk in batch if index == 0]
    for report in (found, [chunk.candidates for chunk in chunks_of(**own, draft="ngram")]):
        for mine, other in zip(report, alone, strict=True):
            assert [each.token for each in mine] == [each.token for each in other]
            assert [c.prob for c in mine] == pytest.approx([c.prob for c in other], abs=1e-4)


def test_a_hook_may_warm_a_greedy_draw_that_would_aim_if_all_were_warm(
    lm: mlxgen.LanguageModel,
) -> None:
    def warm(result: mlxgen.PostSamplingResult) -> None:
        result.resample, result.temperature = not result.attempt, 1.0

    given = {**ADAPTIVE, "temperature": 0, "max_tokens": 5}
    assert len(lm.generate("Once upon a time", hooks=warm, **given).tokens) == 5


def test_forced_runs_count_for_nothing_however_they_are_appended(lm: mlxgen.LanguageModel) -> None:
    spec = mlxgen.Regex("(the|a) (fox|cat|bear) and (the|a) (fox|cat|bear) sat on (a|the) mat")
    options = {**ADAPTIVE, "min_p": 0, "filters": [spec], "ignore_eos": False}
    texts = {lm.generate("Once upon a time", top_logprobs=top, **options).text for top in (None, 1)}
    assert len(texts) == 1
