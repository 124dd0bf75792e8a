"""Which passes a step makes: of which tokens, for which rows, before or after they are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from mlx_lm.models.cache import ArraysCache

import mlxgen
from mlxgen import JsonSchema, Regex
from mlxgen.engine.drafts.drafts import WIDEST
from mlxgen.engine.kv.commands import Command, Run
from mlxgen.engine.kv.held import Later
from mlxgen.engine.kv.runner import Runner
from mlxgen.engine.step.handle import Handle
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
                self.aheads += any(isinstance(t, Later) and t.of.known is None for t in fed)
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
    ("recurrent", "runs", "made"),
    [
        (False, [1, 8, 2, 1], [[1, 1, 2, 8]]),
        (True, [1, 8, 2, 1], [[1, 1], [2], [8]]),  # a state would take in the padding
        (False, [1, WIDEST], [[1, WIDEST // 2]]),  # the rest of it goes through later
        (False, [1, 1, 5, 1, 1], [[1, 1, 1, 1, 1]]),  # more than a few rows go on token by token
    ],
)
def test_rows_with_runs_of_different_length_share_a_pass_unless_states_would_take_in_padding(
    told: Told, recurrent: bool, runs: list[int], made: list[list[int]]
) -> None:
    hall, handles = rows_of(len(runs), recurrent)
    put(hall, told, dict(zip(handles, runs, strict=True)))
    assert sorted(told.passes()[: len(made)]) == made
    hall.finish()
    assert not hall.errors


@pytest.mark.parametrize(("resting", "made"), [(1, [[8, 8]]), (3, [[8], [8]])])
def test_rows_do_not_share_a_pass_if_much_of_it_were_slots_between_them_that_rest(
    told: Told, resting: int, made: list[list[int]]
) -> None:
    hall, handles = rows_of(resting + 2)
    for handle in handles[1:-1]:
        hall.scheduler.park(handle)
    put(hall, told, {handles[0]: 8, handles[-1]: 8})
    assert told.passes()[: len(made)] == made
    for handle in handles[1:-1]:
        hall.scheduler.resume(handle)
    hall.finish()
    assert not hall.errors


def rows_of(count: int, recurrent: bool = False) -> tuple[Hall, list[Handle]]:
    """So many rows that have begun to generate."""
    caches: dict[str, Any] = {"make_cache": lambda: [ArraysCache(1)]} if recurrent else {}
    hall = Hall(endless(**caches), keep_prefixes=False)
    handles = [hall.submit([63 + i] * 9, max_tokens=60) for i in range(count)]
    hall.steps(5)
    return hall, handles


def put(hall: Hall, told: Told, runs: Mapping[Handle, int]) -> None:
    """Have runs of so many tokens come next, and step."""
    for handle, count in runs.items():
        hall.scheduler.change(handle, 0, [97] * count)
    told.passes()
    hall.step()
