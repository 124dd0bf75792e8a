"""Drafts change how soon tokens come, and nothing else."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.utils
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import LanguageModel, OptionError
from mlxgen.engine.drafts.drafts import Drafts
from mlxgen.engine.limits import Limits
from mlxgen.engine.options import Options
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.sampling import PostSamplingResult
from tests.fakes import alphabet_tokenizer, byte_level_tokenizer
from tests.fakes.architectures import cache_kinds
from tests.fakes.paces import Still
from tests.fakes.speaking import Hall, endless, letters

from ...effort import tries

KINDS = [kind for kind in cache_kinds() if kind != "concatenating"]  # no model brings these
PROMPT = [t % 96 for t in b"ababcbabcabab"]


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest) -> tuple[LanguageModel, LanguageModel]:
    """A model of each cache kind, and one with slightly different weights to draft for it."""
    tokenizer = alphabet_tokenizer()
    models = []
    for noise in (0.0, 0.02):
        model, make_cache = cache_kinds()[request.param]()
        if noise:
            mx.random.seed(1)
            shaken = partial(_shaken, noise)
            model.update(mlx.utils.tree_map(shaken, model.parameters()))
        lm = LanguageModel(model, tokenizer)
        lm.runtime.make_cache = make_cache  # type: ignore[method-assign]
        models.append(lm)
    return models[0], models[1]


def _shaken(noise: float, weights: mx.array) -> mx.array:
    return weights + noise * mx.random.normal(weights.shape)


@pytest.fixture(scope="module")
def demo() -> tuple[LanguageModel, LanguageModel]:
    folder = Path(mlxgen.__file__).parent / "demo" / "draft"
    return mlxgen.load(), mlxgen.load(folder)


def chat(text: str) -> mlxgen.Chat:
    return mlxgen.Chat([{"role": "user", "content": text}], template={"enable_thinking": False})


def picky(result: PostSamplingResult) -> None:
    if result.attempt == 0 and result.position % 4 == 3:
        result.rewind = 2
    elif result.attempt == 0 and result.position % 3 == 1:
        result.resample = True


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "newest": {"repetition_penalty": 2.0, "presence_penalty": 1.0, "repetition_context_size": 5},
    "repetitions": {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_penalty_last_n": 30},
    "biases": {"logit_bias": {5: 3.0}},
    "hooks": {"hooks": picky, "hold_tokens": 3},
    "bans": {"banned": ["a", "b"]},
    "stops": {"stop": ["X", "}"]},
    "filter": {"filters": mlxgen.Regex("[A-Z a-z]{5,60}")},
    "log-probabilities": {"top_logprobs": 3},
    "min tokens": {"min_tokens": 12},
    "held": {"hold_tokens": 5},
}


@pytest.mark.parametrize("budget", [1, 2, 3, 7])
def test_a_budget_of_n_tokens_yields_n_tokens(
    pair: tuple[LanguageModel, LanguageModel], budget: int
) -> None:
    lm, _ = pair
    for draft in ("ngram", lm):
        result = lm.generate(PROMPT, draft=draft, max_tokens=budget, ignore_eos=True)
        assert len(result.tokens) == budget and result.finish_reason == "length"


def test_a_good_draft_saves_passes(pair: tuple[LanguageModel, LanguageModel]) -> None:
    lm, _ = pair
    result = lm.generate(PROMPT, draft=lm, max_tokens=40, temperature=0, ignore_eos=True)
    assert result.usage.forward_passes < 20
    accepted = sum(chunk.from_draft for chunk in result.chunks)
    assert accepted > 25
    assert result.usage.accepted_draft_tokens == accepted <= result.usage.drafted_tokens


def test_a_rewind_forgets_what_was_drafted(pair: tuple[LanguageModel, LanguageModel]) -> None:
    lm, other = pair
    plain = lm.generate(PROMPT, max_tokens=30, temperature=0, ignore_eos=True).tokens
    for draft in ("ngram", other, lm):
        stream = lm.stream(PROMPT, draft=draft, max_tokens=30, temperature=0, ignore_eos=True)
        for count in (9, 4, 11):
            for _ in range(count):
                next(stream)
            stream.rewind(tokens=count // 2)
        (twin,) = stream.fork()
        for _ in (*stream, *twin):
            pass
        assert tuple(stream.tokens) == tuple(twin.tokens) == plain


def test_hooks_see_every_accepted_token_once(pair: tuple[LanguageModel, LanguageModel]) -> None:
    lm, other = pair
    for draft in ("ngram", other, lm):
        seen: list[tuple[int, int, float]] = []

        def watch(result: PostSamplingResult, seen: list[Any] = seen) -> None:
            seen.append((result.position, result.sampled_token, result.sampled_prob))

        result = lm.generate(PROMPT, draft=draft, max_tokens=20, temperature=0, hooks=watch)
        assert [(p, t) for p, t, _ in seen] == list(enumerate(result.tokens))
        assert all(0 < prob <= 1 for _, _, prob in seen)


def test_a_draft_ends_where_the_filters_do_not_see_a_token(
    demo: tuple[LanguageModel, LanguageModel],
) -> None:
    lm, _ = demo

    def withholding(result: PostSamplingResult) -> None:
        result.feed_filters = result.position % 5 != 4

    filters = mlxgen.Regex("([a-z ]{3}[0-9])*")
    given: dict[str, Any] = {"max_tokens": 16, "seed": 0, "filters": filters}
    plain = lm.generate("A red fox.", hooks=withholding, draft="off", **given)
    drafted = lm.generate("A red fox.", hooks=withholding, draft=lm, **given)
    assert drafted.tokens == plain.tokens
    assert drafted.usage.accepted_draft_tokens > 4


def wishing(result: PostSamplingResult) -> None:
    """Wants the next draw to be another than those behind it."""
    if result.attempt == 0 and result.position % 5 == 3:
        result.rewind, result.temperature = 2, 3.0
    elif result.attempt == 0 and result.position % 3 == 1:
        result.resample, result.exclude = True, {result.sampled_token}


SAMPLED: dict[str, dict[str, Any]] = {
    **OPTIONS,
    "nucleus": {"top_p": 0.8},
    "ranked": {"top_k": 5, "min_p": 0.05},
    "without top choices": {"xtc_probability": 0.5, "xtc_threshold": 0.1},
    "wishes": {"hooks": wishing, "hold_tokens": 3},
}


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("pair, name", list(product(KINDS, SAMPLED)), indirect=["pair"])
def test_the_text_is_the_same_with_any_draft(
    pair: tuple[LanguageModel, LanguageModel], name: str, temperature: float
) -> None:
    lm, other = pair
    given: dict[str, Any] = {"max_tokens": 24, "temperature": temperature, "seed": 7}
    given |= SAMPLED[name]
    plain = lm.generate(PROMPT, **given)
    for draft, most in (("ngram", 8), (other, 4), (other, 1), (lm, 8)):
        drafted = lm.generate(PROMPT, draft=draft, num_draft_tokens=most, **given)
        assert (drafted.tokens, drafted.text) == (plain.tokens, plain.text), (draft, most)
        assert drafted.finish_reason == plain.finish_reason
        assert [c.index for c in drafted.chunks] == [c.index for c in plain.chunks]
        for mine, theirs in zip(drafted.chunks, plain.chunks, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)
            assert [t for t, _ in mine.top] == [t for t, _ in theirs.top]


@pytest.mark.parametrize("given", [{"temperature": 1.0}, {"temperature": 0.9, "top_p": 0.9}])
def test_what_a_draft_draws_as_the_model_does_stands(
    demo: tuple[LanguageModel, LanguageModel], given: dict[str, Any]
) -> None:
    lm, _ = demo
    result = lm.generate(
        chat("Tell me a story."), draft=lm, seed=3, max_tokens=60, ignore_eos=True, **given
    )
    assert result.usage.forward_passes < 20


@pytest.mark.slow
def test_rows_with_and_without_drafts_run_side_by_side(
    pair: tuple[LanguageModel, LanguageModel],
) -> None:
    lm, other = pair
    each: list[Any] = [{}, {"draft": "ngram"}, {"draft": other}, {"draft": lm}, {"draft": "off"}]
    given: dict[str, Any] = {"max_tokens": 30, "temperature": 0, "ignore_eos": True}
    plain = [lm.generate(PROMPT[i:], **given).tokens for i in range(5)]
    scheduler = Scheduler(lm.runtime, Limits(keep_prefixes=False))
    scheduler._loop.clock.pace = Still()
    handles = [
        scheduler.submit(lm.runtime.prepare(PROMPT[i:], Options.of({**given, **own})))
        for i, own in enumerate(each)
    ]
    tokens: dict[Any, list[int | None]] = {handle: [] for handle in handles}
    while scheduler.busy:
        for event in scheduler.step():
            assert event.error is None
            tokens[event.handle] += [chunk.token for chunk in event.chunks]
        scheduler.check_integrity()
    assert [tuple(tokens[handle]) for handle in handles] == plain


@pytest.mark.parametrize("is_head", [False, True], ids=["model", "head"])
def test_who_made_room_for_others_is_drafted_for_again(
    demo: tuple[LanguageModel, LanguageModel], is_head: bool
) -> None:
    lm, draft = demo
    options: dict[str, Any] = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}
    prompt = chat("Tell me a story about a hen.")
    given = {"draft": "auto" if is_head else draft}
    scheduler = Scheduler(lm.runtime, Limits(max_batch=2))
    handle = scheduler.submit(lm.runtime.prepare(prompt, Options.of({**options, **given})))
    if is_head:
        assert lm.runtime.predictor is not None
        handle.drafts = Drafts([lm.runtime._head_drafter(lm.runtime.predictor)], 3, wanted=True)

    def drafted() -> int:
        return sum(count.proposed for count in handle.drafts.counts.values())

    before = 0
    while scheduler.busy:
        scheduler.step()
        if not before and handle.request.position >= 20:
            before = drafted()
            scheduler._take_out(handle)
            scheduler._preempt(handle)
            scheduler._queue.appendleft(handle)
            assert handle.drafts.nbytes == 0
    assert 0 < 2 * before < drafted()
    plain = lm.generate(prompt, draft="off", **options)
    assert tuple(handle.request.tokens) == plain.tokens


RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@settings(max_examples=tries(25))
@given(st.data())
def test_random_requests_to_the_demo_model_read_the_same(
    demo: tuple[LanguageModel, LanguageModel], data: st.DataObject
) -> None:
    lm, draft = demo
    prompt = chat(data.draw(st.sampled_from(["Hello!", "Tell me a story.", "Who is Ann?"])))
    options: dict[str, Any] = data.draw(
        st.fixed_dictionaries(
            {"max_tokens": st.integers(1, 40)},
            optional={
                "stop": st.sampled_from([["the"], [". ", "\n"]]),
                "banned": st.sampled_from([["!"], ["zz", "fox"]]),
                "filters": st.sampled_from(
                    [mlxgen.JsonSchema(RECORD), mlxgen.Regex("[A-Za-z ,.!]*")]
                ),
                "hooks": st.just(picky),
                "repetition_penalty": st.just(1.2),
                "dry_multiplier": st.sampled_from([0.8, 5.0]),
                "min_tokens": st.just(1),
                "num_draft_tokens": st.integers(1, 16),
            },
        )
    )
    if "hooks" in options:
        options["hold_tokens"] = 4
    drafted = lm.generate(prompt, temperature=0, draft=draft, **options)
    found = lm.generate(prompt, temperature=0, draft="ngram", **options)
    options.pop("num_draft_tokens", None)
    plain = lm.generate(prompt, temperature=0, **options)
    assert drafted.text == found.text == plain.text
    assert drafted.tokens == found.tokens == plain.tokens
    assert drafted.finish_reason == plain.finish_reason


def test_the_draft_of_a_constrained_text_keeps_its_form(
    demo: tuple[LanguageModel, LanguageModel],
) -> None:
    lm, draft = demo
    filters = [mlxgen.JsonSchema(RECORD, whitespace=None, separators=(", ", ": "))]
    for seed in range(5):
        result = lm.generate(
            chat("Make a JSON record of a person."),
            filters=filters,
            draft=draft,
            temperature=0.8,
            seed=seed,
        )
        assert result.finish_reason == "filter" and result.text.startswith('{"name": "')
        assert result.usage.forward_passes < 0.6 * len(result.tokens)


def test_a_draft_with_other_tokens_is_refused_by_name(demo: tuple[LanguageModel, Any]) -> None:
    lm, _ = demo
    model, _make = cache_kinds()["plain"]()
    others = [LanguageModel(model, t) for t in (alphabet_tokenizer(), byte_level_tokenizer())]
    for other in others:
        with pytest.raises(OptionError, match=r"draft: .*take a draft of the same model family"):
            lm.stream("Hello", draft=other)
    for wrong in ("bigram", 3, object()):
        with pytest.raises(
            OptionError, match='draft: expected a LanguageModel, "auto", "ngram" or "off", got '
        ):
            lm.stream("Hello", draft=wrong)
    with pytest.raises(
        OptionError, match="num_draft_tokens: expected an integer from 1 to 64, got 0"
    ):
        lm.stream("Hello", num_draft_tokens=0)


def test_a_draft_that_was_asked_for_proposes_as_many_tokens_as_are_wanted(
    demo: tuple[LanguageModel, LanguageModel],
) -> None:
    lm, draft = demo
    for count in (1, 3):  # right or wrong, in every pass but those at the end
        options: dict[str, Any] = {"draft": draft, "num_draft_tokens": count, "max_tokens": 24}
        usage = lm.generate([300, 301, 302] * 20, ignore_eos=True, **options).usage
        assert count * (usage.forward_passes - 2) <= usage.drafted_tokens
        assert usage.drafted_tokens <= count * usage.forward_passes


def test_a_model_may_be_loaded_with_its_draft() -> None:
    folder = Path(mlxgen.__file__).parent / "demo" / "draft"
    lm = mlxgen.load(draft=folder)
    prompt = chat("What is the capital of France?")
    drafted = lm.generate(prompt, max_tokens=12)
    assert any(chunk.from_draft for chunk in drafted.chunks)
    plain = lm.generate(prompt, max_tokens=12, draft="off")
    assert not any(chunk.from_draft for chunk in plain.chunks)
    assert plain.text == drafted.text
    assert mlxgen.load(draft="ngram").draft == "ngram"


def test_a_draft_runs_a_long_prompt_in_pieces_that_go_between_two_steps_of_others() -> None:
    speaker, draft = endless(), endless()
    hall = Hall(speaker, keep_prefixes=False, prefill_chunk=50)
    other = hall.submit(max_tokens=300)
    hall.steps(3)
    draft.model.forget()
    handle = hall.submit([63] * 600, max_tokens=20, draft=draft.lm)
    most, before = 0, 0
    while not handle.has_ended:
        hall.step()
        fed = sum(map(len, draft.model.fed))
        most, before = max(most, fed - before), fed
    assert before >= 600 and most <= 64
    assert not other.has_ended
    assert hall.texts[handle] == letters(20, 599)
