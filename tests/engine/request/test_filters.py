"""Filters in the step loop: masks, forced runs, ends, closing, and taking back under them."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import Choice, DeadEndError, FilterError, GrammarError, JsonSchema, Regex
from mlxgen.sampling import PostSamplingResult
from tests.fakes.speaking import PROMPT, Speaker, reciter

from ...effort import tries

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def babbler(**options: Any) -> Speaker:
    """Prefers one letter after another, whatever came before."""

    def say(self: Speaker, generated: list[int]) -> list[int]:
        start = len(generated) % 26
        return [97 + (start + i) % 26 for i in range(26)] + [*b'"{}:,0123456789 ', self.end]

    return Speaker([], say, **options)


def test_the_text_is_what_the_filter_says_and_ends_where_it_can_end() -> None:
    result = babbler().lm.generate(PROMPT, filters=[Regex("[0-9]{3}")])
    assert result.text == "000"
    assert result.finish_reason == "filter"
    assert result.chunks[-1].token is not None


def test_forced_tokens_are_not_sampled_and_go_through_the_model_together() -> None:
    speaker = babbler()
    result = speaker.lm.generate(PROMPT, filters=[JsonSchema(SCHEMA)], max_tokens=200)
    plain = babbler().lm.generate(
        PROMPT, filters=[JsonSchema(SCHEMA)], max_tokens=200, top_logprobs=0
    )
    assert result.text == plain.text
    assert result.usage.forced_tokens >= len("name")
    assert result.usage.forward_passes < plain.usage.forward_passes
    for each in (result, plain):  # with log-probabilities they are drawn, and forced as well
        assert sum(c.forced for c in each.chunks) == each.usage.forced_tokens > 0
    assert [c.index for c in result.chunks] == list(range(len(result.chunks)))


def test_a_text_that_is_forced_as_a_whole_needs_no_model() -> None:
    speaker = babbler()
    result = speaker.lm.generate(PROMPT, filters=[Choice(["yes"])])
    assert (result.text, result.finish_reason) == ("yes", "filter")
    assert speaker.model.passes == 0


def test_end_tokens_are_allowed_exactly_where_the_filter_may_end() -> None:
    def say(self: Speaker, generated: list[int]) -> list[int]:
        return [self.end, ord("a"), ord("b")]

    result = Speaker([], say).lm.generate(PROMPT, filters=[Regex("(ab)+")])
    assert (result.text, result.finish_reason) == ("ab", "stop")


def test_logits_wider_than_the_tokenizer_never_give_a_surplus_token() -> None:
    def say(self: Speaker, generated: list[int]) -> list[int]:
        return [290, 280, ord("x"), self.end]

    result = Speaker([], say, vocab_size=300).lm.generate(
        PROMPT, filters=[Regex("[a-z]+")], max_tokens=3
    )
    assert result.text == "xxx"


def test_a_grammar_that_cannot_be_compiled_is_refused_before_anything_runs() -> None:
    speaker = babbler()
    with pytest.raises(GrammarError):
        speaker.lm.stream(PROMPT, filters=[Regex("(")])
    assert speaker.model.passes == 0


def test_an_empty_intersection_names_the_filters() -> None:
    with pytest.raises(DeadEndError, match=r"Regex.*Regex"):
        babbler().lm.generate(PROMPT, filters=[Regex("ab+c"), Regex("ax+c")])


def test_a_token_that_a_hook_puts_against_the_filter_is_an_error_that_changes_nothing() -> None:
    def put(result: PostSamplingResult) -> None:
        if result.position == 1:
            result.sampled_token = ord("x")

    stream = babbler().lm.stream(PROMPT, filters=[Regex("[0-9]{3}")], hooks=put, hold_tokens=5)
    with pytest.raises(FilterError):
        list(stream)
    stream.rewind(to=0)


def test_withheld_tokens_are_text_but_the_filter_never_hears_of_them() -> None:
    speaker = babbler()
    space = ord(" ")

    def spaced(result: PostSamplingResult) -> None:
        if not result.text.endswith(" ") and result.position:
            result.sampled_token = space
            result.feed_filters = False

    stream = speaker.lm.stream(PROMPT, filters=[Regex("[0-9]{3}")], hooks=spaced)
    assert "".join(c.text for c in stream) == "0 0 0"
    stream.rewind(to=2)
    assert "".join(c.text for c in stream) == "0 0"
    assert stream.text == "0 0 0"


def test_hooks_see_forced_tokens_as_certain() -> None:
    seen = []
    babbler().lm.generate(
        PROMPT, filters=[Choice(["yes"])], hooks=lambda r: seen.append((r.sampled_prob, r.logits))
    )
    assert seen == [(1.0, None)] * 3


def test_hooks_may_decline_under_a_filter_and_the_filter_goes_back_with_them() -> None:
    def no_zero(result: PostSamplingResult) -> None:
        if result.sampled_token == ord("0"):
            result.resample, result.exclude = True, [ord("0")]

    result = babbler().lm.generate(PROMPT, filters=[Regex("[0-9]{3}x")], hooks=no_zero)
    assert result.text == "111x"
    assert result.usage.redraws == 3


def test_bans_work_under_a_filter() -> None:
    result = babbler().lm.generate(PROMPT, filters=[Regex("[0-9]{4}")], banned="00")
    assert "00" not in result.text
    assert len(result.text) == 4


def test_the_consumer_may_rewind_and_fork_under_a_filter() -> None:
    stream = babbler().lm.stream(PROMPT, filters=[JsonSchema(SCHEMA)], max_tokens=40)
    chunks = list(stream)
    whole = stream.text
    stream.rewind(to=12)
    (twin,) = stream.fork()
    again = [c.token for c in stream]
    assert again == [c.token for c in chunks[12:]]
    assert stream.text == whole
    list(twin)
    assert twin.text == whole


@pytest.mark.parametrize("budget", [12, 18, 19, 20, 25, 33, 60])
def test_json_is_closed_validly_before_the_budget_cuts_it_off(budget: int) -> None:
    result = babbler().lm.generate(
        PROMPT, filters=[JsonSchema(SCHEMA)], max_tokens=budget, close_json=True
    )
    assert len(result.tokens) <= budget
    if result.usage.incomplete:
        assert budget < len('{"name":"","age":0}')
        assert result.finish_reason == "length"
    else:
        jsonschema.validate(json.loads(result.text), SCHEMA)


OPTIONAL_DATE = {
    "type": "object",
    "properties": {
        "created_at": {"type": "string", "format": "date-time"},
        "mail": {"type": "string", "pattern": r"^[a-z.]+@[a-z.]+\.[a-z]{2,}$"},
        "id": {"type": "integer"},
    },
    "required": ["id"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("budget", [20, 40])
def test_a_short_end_beside_long_ones_is_kept_in_reach(seed: int, budget: int) -> None:
    result = mlxgen.load().generate(
        "It is ",
        filters=[JsonSchema(OPTIONAL_DATE)],
        max_tokens=budget,
        close_json=True,
        temperature=3.0,
        seed=seed,
    )
    assert not result.usage.incomplete
    jsonschema.validate(json.loads(result.text), OPTIONAL_DATE)


def test_a_prefix_is_fed_to_the_filters_and_checked() -> None:
    speaker = babbler()
    whole = speaker.lm.generate(PROMPT, filters=[JsonSchema(SCHEMA)], max_tokens=30)
    rest = speaker.lm.generate(
        PROMPT, filters=[JsonSchema(SCHEMA)], max_tokens=30, prefix=whole.tokens[:13]
    )
    assert rest.tokens == whole.tokens
    assert whole.text.endswith(rest.text)
    with pytest.raises(mlxgen.OptionError, match="prefix"):
        speaker.lm.stream(PROMPT, filters=[JsonSchema(SCHEMA)], prefix=[ord("x")])


# ---- healing


def test_healing_redoes_the_prompts_end_and_delivers_only_what_is_beyond() -> None:
    pieces = ["http", "://", "www", ":"]

    def say(self: Speaker, generated: list[int]) -> list[int]:
        return [self.token("www"), self.token("://"), ord("!"), self.end][len(generated) > 0 :]

    speaker = Speaker(pieces, say, prompt_length=1)
    prompt = [speaker.token("http"), ord(":")]
    result = speaker.lm.generate(prompt, heal=True, max_tokens=3)
    assert result.tokens[0] == speaker.token("://")
    assert result.text.startswith("//")


def test_filters_see_of_a_healed_token_what_is_beyond_the_prompt() -> None:
    def say(self: Speaker, generated: list[int]) -> list[int]:
        return [self.token(" 12"), self.token(" 1"), ord(" "), *b"1234567890", self.end]

    speaker = Speaker([" 1", " 12", " x"], say, prompt_length=1)
    result = speaker.lm.generate([ord("="), ord(" ")], heal=True, filters=[Regex("[0-9]{3}")])
    assert result.tokens[0] == speaker.token(" 12")
    assert (result.text, result.finish_reason) == ("121", "filter")


def test_healing_compares_bytes_and_finds_tokens_that_start_inside_a_character() -> None:
    euro = "€".encode()

    def say(self: Speaker, generated: list[int]) -> list[int]:
        return [self.token("€5")] if not generated else [self.end]

    speaker = Speaker(["€5"], say, prompt_length=1)
    result = speaker.lm.generate([ord("="), *euro[:2]], heal=True)
    assert result.tokens[0] == speaker.token("€5")
    assert result.text.endswith("5")


# ---- laws


@settings(max_examples=tries(40))
@given(
    steps=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 6)), min_size=1, max_size=6),
    stop=st.sampled_from([None, "e", "ab", '"a']),
)
def test_any_steps_and_rewinds_end_as_if_nothing_had_been_taken_back(
    steps: list[tuple[int, int]], stop: str | None
) -> None:
    speaker = babbler()
    options: dict[str, Any] = {"filters": [JsonSchema(SCHEMA)], "max_tokens": 40, "stop": stop}
    plain = speaker.lm.generate(PROMPT, **options)
    stream = speaker.lm.stream(PROMPT, **options)
    for forward, back in steps:
        for _ in range(forward):
            next(stream, None)
        stream.rewind(tokens=min(back, len(stream.tokens)))
        stream._handle.request.check_integrity()
    for _ in stream:
        pass
    assert tuple(stream.tokens) == plain.tokens
    assert stream.text == plain.text
    assert stream.finish_reason == plain.finish_reason


@settings(max_examples=tries(25))
@given(seed=st.integers(0, 50), every=st.integers(2, 7))
def test_declined_draws_leave_no_trace_in_cache_text_or_filters(seed: int, every: int) -> None:
    """Whatever hooks take back, what remains could have been said at once."""

    def unsure(result: PostSamplingResult) -> None:
        if (result.position * 7 + result.attempt + seed) % every == 0 and result.attempt < 3:
            result.rewind = 1 + min(result.position, seed % 3)

    speaker = babbler()
    options: dict[str, Any] = {
        "filters": [Regex("[a-f]{20}")], "temperature": 2.0, "seed": seed, "hold_tokens": 4,
    }  # fmt: skip
    result = speaker.lm.generate(PROMPT, hooks=unsure, **options)
    assert len(result.text) == 20
    assert result.text == speaker.text(result.tokens)
    # The cache was right at every draw: the script saw exactly the history it reports.
    checked = speaker.lm.generate(PROMPT, prefix=result.tokens[:-1], max_tokens=20, **options)
    assert checked.tokens[:-1] == result.tokens[:-1]


def test_a_seed_gives_the_same_text_and_another_gives_another() -> None:
    speaker = babbler()
    texts = [
        speaker.lm.generate(PROMPT, temperature=3.0, seed=seed, max_tokens=20).text
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_logprobs_are_the_models_own_and_only_there_when_asked_for() -> None:
    speaker = reciter(["a"])
    chunk = next(speaker.lm.stream(PROMPT, top_logprobs=3, temperature=0.5))
    assert chunk.logprob == pytest.approx(0.0, abs=1e-3)
    assert next(t for t, _ in chunk.top) == ord("a")
    assert len(chunk.top) == 3
    bare = next(speaker.lm.stream(PROMPT))
    assert (bare.logprob, bare.top) == (None, ())


def test_tokens_without_an_alternative_are_marked_also_where_log_probabilities_are_wanted() -> None:
    lm = mlxgen.load()
    asked: dict[str, Any] = {"filters": mlxgen.Regex("(a|b) fixed (c|d)"), "temperature": 0}
    marked = lm.generate("Say:", top_logprobs=1, **asked)
    plain = lm.generate("Say:", **asked)
    assert marked.text == plain.text
    assert [c.text for c in marked.chunks if c.forced]
    assert {c.token for c in marked.chunks if c.forced} <= {c.token for c in plain.chunks}
    assert all(chunk.logprob is not None for chunk in marked.chunks)
    assert not marked.chunks[0].forced
