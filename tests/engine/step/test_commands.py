"""Which passes a step makes: of which tokens, for which rows, before or after they are known."""

from __future__ import annotations

from typing import Any

import pytest

import mlxgen
from mlxgen import JsonSchema, Regex
from mlxgen.engine.kv import Later
from mlxgen.engine.kv.commands import Command, Run
from mlxgen.engine.step.passes import PADDING, WIDEST
from mlxgen.engine.step.runner import Runner
from tests.fakes.speaking import PROMPT, Hall, endless, letters, reciter


class Told:
    """What the device was told to do, and the passes of tokens that nobody knew then."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.commands: list[Command] = []
        self.aheads = 0
        do = Runner.do

        def noted(runner: Runner, command: Command) -> Any:
            self.commands.append(command)
            if isinstance(command, Run):
                fed = [token for _, tokens in command.rows for token in tokens]
                self.aheads += any(isinstance(t, Later) and not t.of.is_read for t in fed)
            return do(runner, command)

        patch.setattr(Runner, "do", noted)

    def passes(self) -> list[list[int]]:
        """How many tokens each row ran in each pass since this was asked."""
        runs = [command for command in self.commands if isinstance(command, Run)]
        self.commands.clear()
        return [sorted(len(tokens) for _, tokens in run.rows) for run in runs]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


@pytest.mark.parametrize("pattern", ["(.|\n)*", "[0-9a-f ]*", "([0-9][a-f ]){20}"])
def test_what_leaves_a_choice_everywhere_is_looked_ahead_of_from_the_second_token_on(
    told: Told, pattern: str
) -> None:
    given: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True, "draft": "off"}
    result = mlxgen.load().generate("Once", filters=Regex(pattern), **given)
    assert result.finish_reason == "length"
    assert told.aheads == 18 and result.usage.forward_passes == 20


def test_where_runs_are_forced_all_the_time_token_and_run_go_through_together(told: Told) -> None:
    lm = reciter(list("abcefdghcij")).lm
    result = lm.generate(PROMPT, filters=Regex("ab(c|d)ef(c|d)gh(c|d)ij"), max_tokens=20)
    assert result.text == "abcefdghcij" and result.usage.forced_tokens == 8
    assert told.aheads == 0 and result.usage.forward_passes == 3


def test_free_text_between_forced_runs_is_looked_ahead_of(told: Told) -> None:
    text = '{"name": "the quick brown fox", "next": "jumps over the dog"}'
    names: dict[str, Any] = {"name": {"type": "string"}, "next": {"type": "string"}}
    schema: dict[str, Any] = {"type": "object", "properties": names, "required": [*names]}
    schema["additionalProperties"] = False
    filters = JsonSchema(schema, whitespace=None, separators=(", ", ": "))
    result = reciter(list(text)).lm.generate(PROMPT, filters=filters, max_tokens=100)
    assert result.text == text
    drawn = len(text) - result.usage.forced_tokens
    assert 0.75 * drawn <= told.aheads <= drawn  # not for a while after a forced run


def test_a_row_that_drafts_does_not_stop_the_look_ahead_of_the_others(told: Told) -> None:
    hall = Hall(endless(draft="auto", prompt_length=24), keep_prefixes=False)
    drafting = hall.submit(list(b"mnopqrstuvabcdmnopqrstuv"), max_tokens=24, draft="ngram")
    plain = [hall.submit(list(range(40, 64)), max_tokens=24) for _ in range(3)]
    assert hall.finish() == [letters(24)] * 4
    assert drafting.usage.accepted_draft_tokens > 0 and told.aheads >= 20
    assert [handle.passes for handle in plain] == [25] * 3


@pytest.mark.parametrize(
    ("runs", "made"),
    [
        ([1, 6, 2, 1], [[1, 1, 2, 6]]),  # little padding
        ([1, 8, 1, 1], [[1, 1, 1], [8]]),
        ([1, PADDING + 8], [[1, WIDEST // 2]]),  # the rest of it goes through later
        ([1, 1, 5, 1, 1], [[1, 1, 1, 1, 1]]),  # more than a few rows go on token by token
    ],
)
def test_rows_with_runs_of_different_length_share_a_pass_if_that_is_little_padding(
    told: Told, runs: list[int], made: list[list[int]]
) -> None:
    hall = Hall(endless(), keep_prefixes=False)
    handles = [hall.submit([63 + i] * 9, max_tokens=60) for i in range(len(runs))]
    hall.steps(5)
    for handle, count in zip(handles, runs, strict=True):
        hall.scheduler.change(handle, 0, [97] * count)
    told.passes()
    hall.step()
    assert sorted(told.passes()[: len(made)]) == made
    hall.finish()
    assert not hall.errors
