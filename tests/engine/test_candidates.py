"""What each token was drawn from: ``Chunk.candidates``, beside the model's own ``Chunk.top``."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mlxgen import Chunk, PostSamplingResult, Regex, Session
from tests.fakes.speaking import PROMPT, Speaker

A, B, C, D = b"abcd"
ODDS = {A: 0.5, B: 0.25, C: 0.125, D: 0.125}


def chancy(**options: Any) -> Speaker:
    """Says any of four letters, with the same odds everywhere."""
    logits = {token: math.log(odds) for token, odds in ODDS.items()}
    return Speaker([], lambda self, generated: logits, **options)


def chunks_of(**options: Any) -> list[Chunk]:
    return list(chancy().lm.stream(PROMPT, **{"max_tokens": 4, **options}))


<<<<<<< HEAD
def test_nothing_is_reported_or_computed_unless_it_is_asked_for() -> None:
    assert all(chunk.candidates == () for chunk in chunks_of(top_logprobs=2))
    stream = chancy().lm.stream(PROMPT, max_tokens=2)
    assert not any(stream._handle.request.want)


=======
>>>>>>> eebe570 (Test what a stream does at its own seam, and drafts once for every kind of cache)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_candidates_are_those_that_the_filter_allows_and_top_the_models_own(
    temperature: float,
) -> None:
    for chunk in chunks_of(
        filters=Regex("[bcd]{4}"), top_candidates=2, top_logprobs=2, temperature=temperature, seed=1
    ):
        assert [other.token for other in chunk.top] == [A, B]
        assert [other.logprob for other in chunk.top] == pytest.approx(
            [math.log(0.5), math.log(0.25)], abs=0.01
        )
        assert [other.token for other in chunk.candidates] == [B, C]
        assert [other.prob for other in chunk.candidates] == pytest.approx([0.5, 0.25], abs=0.01)


def test_truncation_and_temperature_are_in_the_probabilities() -> None:
    (chunk, *_) = chunks_of(top_candidates=128, top_k=2, temperature=0.5, seed=3)
    assert [other.token for other in chunk.candidates] == [A, B]
    assert [other.prob for other in chunk.candidates] == pytest.approx([0.8, 0.2], abs=0.01)


def test_a_token_that_was_not_drawn_stands_alone() -> None:
    chunks = chunks_of(filters=Regex("xy[ab]"), top_candidates=5)
    assert [chunk.forced for chunk in chunks] == [True, True, False]
    assert [chunk.candidates for chunk in chunks[:2]] == [((ord("x"), 1.0),), ((ord("y"), 1.0),)]
    assert [other.token for other in chunks[2].candidates] == [A, B]


def test_what_a_hook_or_a_ban_has_excluded_is_no_candidate() -> None:
    def no_b(result: PostSamplingResult) -> None:
        result.resample, result.exclude = result.attempt == 0, [B]

    (chunk,) = chunks_of(hooks=no_b, top_candidates=3, max_tokens=1)
    assert [other.token for other in chunk.candidates] == [A, C, D]
    (chunk,) = chunks_of(banned="a", top_candidates=3, max_tokens=1)
    assert [other.token for other in chunk.candidates] == [B, C, D]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_and_a_draft_report_what_one_alone_reports(temperature: float) -> None:
    own: dict[str, Any] = {"top_candidates": 3, "max_tokens": 12, "temperature": temperature}
    own |= {"seed": 5, "ignore_eos": True}
    alone = chunks_of(**own)
    lm = chancy().lm
    each: list[Any] = [own, {"max_tokens": 12}, {**own, "top_candidates": 1, "top_k": 1}]
    batch = lm.batch([PROMPT] * 3, each=each)
    found = [chunk.candidates for index, chunk in batch if index == 0]
    drafted = [chunk.candidates for chunk in chunks_of(**own, draft="ngram")]
    for report in (found, drafted):
        assert len(report) == len(alone)
        for mine, other in zip(report, (chunk.candidates for chunk in alone), strict=True):
            assert [each.token for each in mine] == [each.token for each in other]
            assert [c.prob for c in mine] == pytest.approx([c.prob for c in other], abs=1e-4)


def test_a_session_and_a_controller_report_them_too() -> None:
    speaker = chancy()
    session = Session(speaker.tokenizer, top_candidates=2, vocab_size=speaker.lm.vocab_size)
    logits = [-100.0] * speaker.lm.vocab_size
    logits[A] = logits[B] = 0.0
    chunk = session.push_logits(logits)
    assert [other.token for other in chunk.candidates] == [A, B]
    assert session.push_token(D).candidates == ((D, 1.0),)
