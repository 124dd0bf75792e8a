"""The pass after a token is submitted before the token is known, unless that is in vain.

The first token of a request is out before anything else is submitted.
"""

from __future__ import annotations

from typing import Any

import pytest

import mlxgen
from mlxgen import JsonSchema, Regex
from mlxgen.engine.step.step import Loop
from tests.fakes.speaking import PROMPT, Hall, endless, letters, reciter


class Aheads:
    """How many there were."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        look = Loop._look_ahead

        def counted(*args: Any) -> Any:
            self.count += 1
            return look(*args)

        patch.setattr(Loop, "_look_ahead", counted)


@pytest.fixture
def aheads(monkeypatch: pytest.MonkeyPatch) -> Aheads:
    return Aheads(monkeypatch)


@pytest.mark.parametrize("pattern", ["(.|\n)*", "[0-9a-f ]*", "([0-9][a-f ]){20}"])
def test_what_leaves_a_choice_everywhere_is_looked_ahead_of_from_the_second_token_on(
    aheads: Aheads, pattern: str
) -> None:
    lm = mlxgen.load()
    result = lm.generate(
        "Once", filters=Regex(pattern), max_tokens=20, ignore_eos=True, draft="off"
    )
    assert result.finish_reason == "length"
    assert aheads.count == 18 and result.usage.forward_passes == 20


def test_where_runs_are_forced_all_the_time_token_and_run_go_through_together(
    aheads: Aheads,
) -> None:
    lm = reciter(list("abcefdghcij"), draft="auto").lm
    result = lm.generate(
        PROMPT, filters=Regex("ab(c|d)ef(c|d)gh(c|d)ij"), max_tokens=20, draft="off"
    )
    assert result.text == "abcefdghcij" and result.usage.forced_tokens == 8
    assert aheads.count == 0 and result.usage.forward_passes == 3


def test_the_first_forced_run_says_that_others_follow(aheads: Aheads) -> None:
    lm = reciter(list("dcefdghcij"), draft="auto").lm
    result = lm.generate(
        PROMPT, filters=Regex("(c|d)(c|d)ef(c|d)gh(c|d)ij"), max_tokens=20, draft="off"
    )
    assert result.text == "dcefdghcij" and aheads.count == 1


def test_free_text_between_forced_runs_is_looked_ahead_of(aheads: Aheads) -> None:
    text = '{"name": "the quick brown fox", "next": "jumps over the dog"}'
    schema: dict[str, Any] = {
        "properties": {"name": {"type": "string"}, "next": {"type": "string"}}
    }
    schema |= {"type": "object", "required": ["name", "next"], "additionalProperties": False}
    lm = reciter(list(text)).lm
    filters = JsonSchema(schema, whitespace=None, separators=(", ", ": "))
    result = lm.generate(PROMPT, filters=filters, max_tokens=100, draft="off")
    assert result.text == text
    drawn = len(text) - result.usage.forced_tokens
    assert 0.75 * drawn <= aheads.count <= drawn  # not for a while after a forced run


def test_a_row_that_drafts_does_not_stop_the_look_ahead_of_the_others(aheads: Aheads) -> None:
    speaker = endless(draft="auto", prompt_length=24)
    hall = Hall(speaker, keep_prefixes=False)
    drafting = hall.submit(list(b"mnopqrstuvabcdmnopqrstuv"), max_tokens=24, draft="ngram")
    plain = [hall.submit(list(range(40, 64)), max_tokens=24) for _ in range(3)]
    assert hall.finish() == [letters(24)] * 4
    assert drafting.usage.accepted_draft_tokens > 0
    assert aheads.count >= 20
    assert [handle.passes for handle in plain] == [25] * 3
