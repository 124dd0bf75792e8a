"""Filters in the step loop: forced runs, ends within a budget, and going back."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import Choice, DeadEndError, GrammarError, JsonSchema, Regex, Session
from mlxgen.sampling import PostSamplingResult
from tests.fakes import alphabet_tokenizer
from tests.fakes.speaking import PROMPT

from ...effort import tries
from ..kit import babbler

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_forced_tokens_are_not_sampled_and_go_through_the_model_together() -> None:
    lm = babbler().lm
    options: dict[str, Any] = {"filters": [JsonSchema(SCHEMA)], "max_tokens": 200}
    result = lm.generate(PROMPT, **options)
    plain = lm.generate(PROMPT, **options, top_logprobs=0)
    assert result.text == plain.text
    assert result.usage.forced_tokens >= len("name")
    assert result.usage.forward_passes < plain.usage.forward_passes
    for each in (result, plain):  # with log-probabilities they are drawn, and forced as well
        assert sum(c.forced for c in each.chunks) == each.usage.forced_tokens > 0
    assert all(chunk.logprob is not None for chunk in plain.chunks)
    assert [c.index for c in result.chunks] == list(range(len(result.chunks)))


def test_what_cannot_be_is_refused_with_the_names_of_the_filters() -> None:
    speaker = babbler()
    with pytest.raises(GrammarError):
        speaker.lm.stream(PROMPT, filters=[Regex("(")])
    assert speaker.model.passes == 0
    with pytest.raises(DeadEndError, match=r"Regex.*Regex"):
        speaker.lm.generate(PROMPT, filters=[Regex("ab+c"), Regex("ax+c")])


# ---- closing -----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("seed", range(tries(64)))
@pytest.mark.parametrize("budget", [20, 40])
def test_a_short_end_beside_long_ones_is_kept_in_reach(seed: int, budget: int) -> None:
    options: dict[str, Any] = {"filters": [JsonSchema(OPTIONAL_DATE)], "close_json": True}
    lm = mlxgen.load()
    result = lm.generate("It is ", max_tokens=budget, temperature=3.0, seed=seed, **options)
    assert not result.usage.incomplete
    jsonschema.validate(json.loads(result.text), OPTIONAL_DATE)


# ---- a law --------------------------------------------------------------------------------------


@settings(max_examples=tries(64))
@given(seed=st.integers(0, 50), every=st.integers(2, 7))
def test_declined_draws_leave_no_trace_in_cache_text_or_filters(seed: int, every: int) -> None:
    """Whatever hooks take back, what remains could have been said at once."""

    def unsure(result: PostSamplingResult) -> None:
        if (result.position * 7 + result.attempt + seed) % every == 0 and result.attempt < 3:
            result.rewind = 1 + min(result.position, seed % 3)

    speaker = babbler()
    options: dict[str, Any] = {"filters": [Regex("[a-f]{20}")], "temperature": 2.0}
    options |= {"seed": seed, "hold_tokens": 4}
    result = speaker.lm.generate(PROMPT, hooks=unsure, **options)
    assert len(result.text) == 20 and result.text == speaker.text(result.tokens)
    # The cache was right at every draw: the script saw exactly the history it reports.
    checked = speaker.lm.generate(PROMPT, prefix=result.tokens[:-1], max_tokens=20, **options)
    assert checked.tokens[:-1] == result.tokens[:-1]


# ---- a valid end within the budget, however the tokens before it are drawn --------------------

DEEDS = st.one_of(
    st.tuples(st.just("draw"), st.integers(0, 1)),
    st.tuples(st.just("push"), st.integers(0, 1)),
    st.tuples(st.sampled_from(["rewind", "fork"]), st.integers(0, 7)),
)


def draw(session: Session, letter: int) -> None:
    """Draw a letter where it is allowed, and else the other one or what leads to the end."""
    logits = np.zeros(257, np.float32)
    logits[ord("ab"[letter])] = 2
    logits[[ord("a"), ord("b")]] += 1
    session.push_logits(logits)


def seen(session: Session) -> tuple[str, list[int]]:
    """The text, and what may come next."""
    mask = session.mask() if session.finish_reason is None else None
    return session.text, [] if mask is None else mask.tolist()


@settings(max_examples=tries(200))
@given(
    valid=st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=5, unique=True),
    budget=st.integers(1, 8),
    deeds=st.lists(DEEDS, max_size=20),
)
def test_a_text_ends_validly_if_any_valid_text_fits(
    valid: list[str], budget: int, deeds: list[tuple[str, int]]
) -> None:
    fits = [word for word in valid if len(word) <= budget]
    session = Session(
        alphabet_tokenizer(), filters=Choice(valid), close_json=True, max_tokens=budget
    )
    for deed, number in deeds:
        if deed == "rewind":
            session.rewind(to=min(number, len(session.tokens)))
        elif deed == "fork":
            before = seen(session)
            (twin,) = session.fork()
            while twin.finish_reason is None:
                draw(twin, number % 2)
            assert seen(session) == before
            session = session.fork()[0] if number > 3 else session
        elif session.finish_reason is None:
            draw(session, number)
        if session.finish_reason is None and fits:
            mask = session.mask()
            assert mask is not None and mask.any()
    while session.finish_reason is None:
        draw(session, 0)
    if fits:
        assert session.text in valid and not session.usage.incomplete
    else:
        assert session.finish_reason == "length" and session.usage.incomplete
