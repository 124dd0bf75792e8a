"""Compiler processes that are killed, stopped or cannot be started say nothing of a grammar."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from mlxgen.errors import GrammarError
from mlxgen.filters import JsonSchema, Regex
from mlxgen.load import load
from mlxgen.server.errors import RequestError
from mlxgen.server.guard.child import Facts, Verdict
from mlxgen.server.guard.compiler import Compiler, within
from mlxgen.server.guard.guard import Guard

from .guarding import with_guard


@pytest.fixture(scope="module")
def facts() -> Facts:
    vocabulary = load().vocabulary
    return Facts.of(vocabulary, vocabulary.size, cpu_seconds=5.0, memory=1 << 29)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The processes that were started."""
    start = asyncio.create_subprocess_exec
    pids: list[int] = []

    async def noting(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*arguments, **options)
        pids.append(process.pid)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noting)
    yield pids


async def until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.01)


def slow() -> JsonSchema:
    """A schema that takes some tenths of a second."""
    return JsonSchema({"type": "object", "properties": {f"p{i}": {} for i in range(1500)}})


@pytest.mark.slow
def test_a_schema_is_compiled_after_every_process_was_killed(
    facts: Facts, started: list[int]
) -> None:
    async def test(guard: Guard) -> None:
        for round in range(3):
            await until(lambda: guard.idle == 2)
            for pid in started[-2:]:
                os.kill(pid, signal.SIGKILL)
            await guard.check(Regex(f"[a-z]{{{round}}}x"))
        await until(lambda: guard.idle == 2)
        assert len(started) == 8

    with_guard(facts, test)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many processes are still to be killed when they are sent a specification."""
    judge = Compiler.judge
    left = [0]

    async def judge_or_die(compiler: Compiler, spec: bytes) -> Verdict:
        if left[0]:
            left[0] -= 1
            os.kill(compiler._process.pid, signal.SIGKILL)
        return await judge(compiler, spec)

    monkeypatch.setattr(Compiler, "judge", judge_or_die)
    return left


def test_a_schema_whose_process_is_killed_is_tried_again(facts: Facts, killed: list[int]) -> None:
    async def test(guard: Guard) -> None:
        killed[0] = 2
        await guard.check(slow())
        assert killed == [0] and guard.seconds([slow()]) > 0

    with_guard(facts, test)


def test_what_was_lost_again_and_again_is_not_remembered(facts: Facts, killed: list[int]) -> None:
    async def test(guard: Guard) -> None:
        killed[0] = 3
        with pytest.raises(RequestError) as caught:
            await guard.check(slow())
        assert caught.value.status == 503 and caught.value.code == "compiler_lost"
        await guard.check(slow())

    with_guard(facts, test)


def test_a_process_that_stands_still_is_waited_for_or_replaced(
    facts: Facts, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxgen.server.guard.compiler.ANSWERING", 0.3)

    async def test(guard: Guard) -> None:
        await until(lambda: guard.idle == 1)
        check = asyncio.create_task(guard.check(slow()))
        await until(lambda: guard.idle == 0)
        await asyncio.sleep(0.05)
        os.kill(started[0], signal.SIGSTOP)
        await asyncio.sleep(0.5)
        with contextlib.suppress(ProcessLookupError):  # it has been replaced
            os.kill(started[0], signal.SIGCONT)
        await check
        await until(lambda: guard.idle == 1)
        os.kill(started[-1], signal.SIGSTOP)
        await guard.check(Regex("stopped"))

    with_guard(facts, test, processes=1)


def test_time_in_which_the_server_stands_still_does_not_count() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        clock = loop.time
        asleep = [0.0]
        loop.time = lambda: clock() + asleep[0]  # type: ignore[method-assign]

        async def work() -> str:
            for _ in range(3):
                asleep[0] += 3600  # a night with the lid closed
                await asyncio.sleep(0.01)
            return "done"

        assert await within(10.0, work()) == "done"
        with pytest.raises(TimeoutError):
            await within(0.01, asyncio.Event().wait())

    asyncio.run(run())


def test_processes_come_back_whenever_they_can_be_started(
    facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Compiler.start
    tries = [0]

    async def start_late(known: bytes) -> Compiler:
        tries[0] += 1
        if tries[0] <= 12:
            raise OSError(errno.EMFILE, "Too many open files")
        return await start(known)

    monkeypatch.setattr(Compiler, "start", start_late)
    monkeypatch.setattr("mlxgen.server.guard.guard._PAUSES", (0.0, 0.01))

    async def test(guard: Guard) -> None:
        await guard.check(Regex("late"))

    with_guard(facts, test)
    assert tries[0] >= 13


@pytest.mark.slow
def test_a_process_measures_the_memory_of_each_grammar_from_where_it_begins(facts: Facts) -> None:
    known = replace(facts, memory=24 << 20)

    async def run() -> None:
        compiler = await Compiler.start(pickle.dumps(known))
        try:
            for name in "abcdefghijkl":
                properties: dict[str, Any] = {f"{name}{i}": {} for i in range(1200)}
                spec = JsonSchema({"type": "object", "properties": properties})
                verdict = await compiler.judge(pickle.dumps(spec))
                assert verdict.error is None and verdict.seconds > 0
            assert verdict.worn
        finally:
            await compiler.end()

    asyncio.run(run())


def test_text_that_can_only_end_at_once_by_an_end_token_is_no_text(facts: Facts) -> None:
    from mlxgen.filters import Lark

    async def test(guard: Guard) -> None:
        for grammar in ("start: <|im_end|>", 'start: "a" <|im_end|>', 'start: "a"? <|im_end|>'):
            with pytest.raises(GrammarError, match=r"no text satisfies it.*Lark"):
                await guard.check(Lark(grammar))

    with_guard(facts, test)
