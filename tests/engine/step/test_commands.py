"""Which passes a step makes: of which tokens, for which rows, before or after they are known; and
another runner that is told the same does the same."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
import pytest

import mlxgen
from mlxgen import LanguageModel, Regex
from mlxgen.engine import runtime
from mlxgen.engine.drafts.drafts import WIDEST
from mlxgen.engine.kv.commands import (
    Command,
    Keep,
    Run,
    Take,
    Trim,
    Wait,
    read,
    written,
)
from mlxgen.engine.kv.groups import Slots
from mlxgen.engine.kv.held import Later
from mlxgen.engine.kv.runner import Runner
from mlxgen.engine.limits import Limits
from mlxgen.engine.options import Options
from mlxgen.engine.prefix.store import BlockStore
from mlxgen.engine.request.accept import rewind
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.engine.step.handle import Handle
from tests.engine.kit import options_for
from tests.fakes.architectures import of_kind
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


def rows_of(count: int, recurrent: bool = False) -> tuple[Hall, list[Handle]]:
    """So many rows that have begun to generate."""
    hall = Hall(endless(recurrent=recurrent), keep_prefixes=False)
    handles = [hall.submit([63 + i] * 9, max_tokens=60) for i in range(count)]
    hall.steps(5)
    return hall, handles


def put(hall: Hall, told: Told, runs: Mapping[Handle, int]) -> None:
    """Have runs of so many tokens come next, and step."""
    for handle, count in runs.items():
        hall.scheduler.change(handle, 0, [97] * count)
    told.passes()
    hall.step()


# ---- another runner that is told the same -------------------------------------------------------

KINDS = ["plain", "sliding window", "recurrent", "hybrid", "quantised"]


class Recorder(Runner):
    """Remembers what it was told, and what came of it."""

    made: ClassVar[list[Recorder]] = []

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.heard: list[tuple[Command, Any]] = []
        self.made.append(self)

    def do(self, command: Command) -> Any:
        found = super().do(command)
        self.heard.append((command, found))
        return found


def crowd(lm: LanguageModel, dice: random.Random) -> None:
    """Requests of all kinds, with rewinds and forks on the way."""
    hall = Scheduler(lm.runtime, Limits(max_batch=4))
    common = [dice.randrange(90) for _ in range(40)]
    handles = []
    for number, options in enumerate(options_for("commands").values()):
        checked = Options.of({"max_tokens": 14, "seed": number, "ignore_eos": True, **options})
        handles.append(
            hall.submit(lm.runtime.prepare([*common[: 20 + 4 * number], number], checked))
        )
    for step in range(200):
        hall.step()
        running = [handle for handle in handles if not handle.closed]
        if not running:
            return
        if step % 5 == 4 and step < 30:
            chosen = dice.choice(running)
            rewind(chosen.request, chosen.request.position // 2)
        if step == 7:
            handles += hall.fork(running[0])
    raise AssertionError("it never ended")


@pytest.mark.parametrize("kind", KINDS)
def test_another_runner_that_is_told_the_same_in_json_computes_the_same(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "Runner", Recorder)
    monkeypatch.setattr(Recorder, "made", [])
    lm = of_kind(kind)
    crowd(lm, random.Random(5))
    (first,) = Recorder.made
    assert {Run, Trim, Take, Keep, Wait} <= {type(command) for command, _ in first.heard}
    cache = BlockStore(first.make, lm.prefix_cache.max_bytes)
    slots = Slots(first.make, lambda: lm.runtime.batches, lm.runtime.footprint.spare)
    second = Runner(lm.model, first.make, slots, lambda: cache)
    text = json.dumps([written(command) for command, _ in first.heard])
    for line, (_, found) in zip(json.loads(text), first.heard, strict=True):
        got = second.do(read(line))
        if isinstance(found, mx.array):
            np.testing.assert_allclose(np.array(got), np.array(found), rtol=2e-3, atol=2e-4)
        else:
            assert type(got) is type(found)
    assert cache.nbytes == lm.prefix_cache.nbytes
