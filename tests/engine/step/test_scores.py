"""The tokens of a prompt are scored while it is run, as the model itself would score them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxgen import Choice, LanguageModel, load
from mlxgen.engine.chunk import Chunk, PromptScore
from mlxgen.engine.limits import Limits
from mlxgen.engine.options import Options
from mlxgen.engine.scheduling.scheduler import Scheduler

TEXT = "Once upon a time there was a fox who lived in a wood and liked the rain. " * 30


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return load()


def reference(lm: LanguageModel, tokens: list[int]) -> np.ndarray:
    """Log-probabilities [n - 1, vocab] of what follows each token, in one plain pass."""
    if len(tokens) == 1:
        return np.zeros((0, lm.vocab_size))
    logits = lm.model(mx.array([tokens]))[0, :-1].astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


def check(lm: LanguageModel, tokens: list[int], scores: tuple[PromptScore, ...], top: int) -> None:
    assert [score.token for score in scores] == tokens
    assert scores[0] == PromptScore(tokens[0])
    for token, score, row in zip(tokens[1:], scores[1:], reference(lm, tokens), strict=True):
        assert score.logprob == pytest.approx(row[token], abs=1e-3)
        assert score.rank is not None
        assert score.rank == pytest.approx(1 + (row > row[token]).sum(), abs=1)  # but for ties
        assert [a.logprob for a in score.top] == pytest.approx(-np.sort(-row)[:top], abs=1e-3)


@pytest.mark.parametrize("count", [1, 2, 17, 700])
def test_scores_are_those_of_one_plain_pass(lm: LanguageModel, count: int) -> None:
    tokens = lm.vocabulary.encode(TEXT)[:count]
    chunks = list(lm.stream(tokens, max_tokens=3, prompt_logprobs=3))
    check(lm, tokens, chunks[0].prompt, 3)
    assert not any(chunk.prompt for chunk in chunks[1:])


def test_a_prompt_is_scored_though_filters_leave_nothing_to_draw(lm: LanguageModel) -> None:
    tokens = lm.vocabulary.encode(TEXT)[:20]
    for texts in (["the fox"], ["the fox sat", "the fox ran"]):
        result = lm.generate(tokens, filters=Choice(texts), prompt_logprobs=2)
        assert result.text in texts and result.usage.forced_tokens
        check(lm, tokens, result.chunks[0].prompt, 2)


def test_nothing_of_a_scored_prompt_is_taken_from_the_prefix_cache(lm: LanguageModel) -> None:
    tokens = lm.vocabulary.encode(TEXT)[:200]
    with lm.stream(tokens, max_tokens=2) as stream:
        list(stream)
        stream.keep()
    result = lm.generate(tokens, max_tokens=2, prompt_logprobs=0)
    check(lm, tokens, result.chunks[0].prompt, 0)
    assert result.usage.cached_tokens == 0
    assert result.text == lm.generate(tokens, max_tokens=2).text


def test_a_batch_scores_as_one_alone_does(lm: LanguageModel) -> None:
    whole = lm.vocabulary.encode(TEXT)
    prompts = [whole[:n] for n in (1, 12, 40, 40, 300)]
    wanted = [{"prompt_logprobs": 2}, {"prompt_logprobs": 0}, {}, {"prompt_logprobs": 1}, {}]
    batch = lm.batch(prompts, each=wanted, max_tokens=4, top_logprobs=0)  # type: ignore[arg-type]
    first: dict[int, Chunk] = {}
    for index, chunk in batch:
        first.setdefault(index, chunk)
    for index, (tokens, options) in enumerate(zip(prompts, wanted, strict=True)):
        scores = first[index].prompt
        if not options:
            assert scores == ()
        else:
            check(lm, tokens, scores, options["prompt_logprobs"])


def test_a_scored_prompt_beside_others_is_run_again_if_it_is_lost(lm: LanguageModel) -> None:
    tokens = lm.vocabulary.encode(TEXT)[:700]
    scheduler = Scheduler(lm.runtime, Limits(keep_prefixes=False, prefill_chunk=512))
    running = scheduler.submit(
        lm.runtime.prepare([5], Options.of({"max_tokens": 99, "ignore_eos": True, "draft": "off"}))
    )
    scored = scheduler.submit(
        lm.runtime.prepare(tokens, Options.of({"prompt_logprobs": 2, "draft": "off"}))
    )
    while scored.kv.length < 300:
        scheduler.step()
    scheduler.set_aside(scored)
    scheduler.resume(scored)
    prompt: tuple[PromptScore, ...] = ()
    while not prompt:
        for event in scheduler.step():
            if event.handle is scored:
                prompt += event.chunks[0].prompt
    check(lm, tokens, prompt, 2)
    assert not running.has_ended
    scheduler.close()
