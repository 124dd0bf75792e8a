"""The engine's thread with a scheduler that has no model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from mlxgen.engine import Usage
from mlxgen.errors import QueueFullError
from mlxgen.server.engine.mailbox import Mailbox
from mlxgen.server.errors import RequestError

from ..fakes import WAIT, FakeEvent, FakeScheduler, Watched


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(3 * WAIT):
            await test()

    asyncio.run(in_time())


def mailbox(rows: int = 1, limit: int = 100_000) -> Mailbox:
    return Mailbox(rows, on_overflow=lambda: None, limit=limit)


async def everything(box: Mailbox) -> list[tuple[int, str | None]]:
    found: list[tuple[int, str | None]] = []
    while items := await box.take():
        found += [(item.place, chunk.finish_reason) for item in items for chunk in item.chunks]
    return found


def test_rows_of_a_request_arrive_by_their_place_and_with_their_usage() -> None:
    async def test() -> None:
        engine = Watched(lambda: (FakeScheduler(), "loaded"))
        assert await engine.ready() == "loaded"
        box = mailbox(2)
        engine.thread.submit([3, 1], box)
        found = await everything(box)
        assert sorted(found, key=lambda item: item[0]) == [
            (0, None),
            (0, None),
            (0, "length"),
            (1, "length"),
        ]
        assert [usage.completion_tokens for usage in box.usages] == [3, 1]
        assert box.finished
        await engine.end()

    run(test)


def test_the_scheduler_is_only_called_in_its_thread_and_closed_there() -> None:
    names = set()

    class Noting(FakeScheduler):
        def __getattribute__(self, name: str) -> Any:
            names.add(threading.current_thread().name)
            return super().__getattribute__(name)

    async def test() -> None:
        engine = Watched(lambda: (Noting(), None))
        await engine.ready()
        box = mailbox()
        engine.thread.submit([5], box)
        await everything(box)
        await engine.end()

    run(test)
    assert names == {"engine"}


def test_a_request_that_does_not_fit_as_a_whole_leaves_nothing_behind() -> None:
    scheduler = FakeScheduler()

    async def test() -> None:
        engine = Watched(lambda: (scheduler, None))
        await engine.ready()
        box = mailbox(3)
        engine.thread.submit([1 << 40, 1 << 40, QueueFullError("full")], box)
        with pytest.raises(QueueFullError):
            await everything(box)
        other = mailbox()
        engine.thread.submit([2], other)
        assert len(await everything(other)) == 2
        assert len(scheduler.cancelled) == 2
        await engine.end()

    run(test)


def test_a_row_that_cannot_be_submitted_for_whatever_reason_ends_its_request_only() -> None:
    async def test() -> None:
        engine = Watched(lambda: (FakeScheduler(), None))
        await engine.ready()
        box, other = mailbox(), mailbox()
        engine.thread.submit([ZeroDivisionError("oops")], box)
        engine.thread.submit([2], other)
        with pytest.raises(ZeroDivisionError):
            await everything(box)
        assert len(await everything(other)) == 2
        await engine.end()

    run(test)


def test_a_cancelled_row_is_gone_at_the_next_step_and_others_go_on() -> None:
    scheduler = FakeScheduler(lambda _: time.sleep(0.001))

    async def test() -> None:
        engine = Watched(lambda: (scheduler, None))
        await engine.ready()
        endless, short = mailbox(), mailbox()
        engine.thread.submit([1 << 40], endless)
        await endless.take()
        engine.thread.cancel(endless)
        engine.thread.cancel(endless)
        engine.thread.submit([20], short)
        assert len(await everything(short)) == 20
        assert len(scheduler.cancelled) == 1
        assert not scheduler.handles
        await engine.end()

    run(test)


def test_an_error_of_one_row_ends_its_request_only() -> None:
    scheduler = FakeScheduler()

    def fail_first(scheduler: FakeScheduler) -> None:
        for handle in list(scheduler.handles):
            if handle.row == 77:
                scheduler.handles.remove(handle)
                failed.append(handle)

    failed: list[Any] = []
    step = scheduler.step

    def stepping() -> Any:
        fail_first(scheduler)
        events = [FakeEvent(handle, [], ValueError("of this row")) for handle in failed]
        failed.clear()
        return [*events, *step()]

    scheduler.step = stepping  # type: ignore[method-assign]

    async def test() -> None:
        engine = Watched(lambda: (scheduler, None))
        await engine.ready()
        bad, good = mailbox(), mailbox()
        engine.thread.submit([30], good)
        engine.thread.submit([77], bad)
        with pytest.raises(ValueError, match="of this row"):
            await everything(bad)
        assert len(await everything(good)) == 30
        await engine.end()

    run(test)


def test_a_failed_step_is_a_failed_engine_and_a_failed_load_is_a_refusal() -> None:
    def explode(_: FakeScheduler) -> None:
        raise RuntimeError("out of memory")

    async def test() -> None:
        engine = Watched(lambda: (FakeScheduler(explode), None))
        await engine.ready()
        engine.thread.submit([1], mailbox())
        await engine.thread.gone
        assert [str(error) for error in engine.failures] == ["out of memory"]
        assert engine.thread.join(WAIT)

        def refuse() -> Any:
            raise ValueError("no model")

        other = Watched(refuse)
        with pytest.raises(ValueError, match="no model"):
            await other.ready()
        await other.thread.gone
        assert not other.failures

    run(test)


def test_an_engine_that_takes_no_step_says_for_how_long_until_it_takes_one() -> None:
    going = threading.Event()

    def wait(_: FakeScheduler) -> None:
        going.wait(WAIT)

    scheduler = FakeScheduler(wait)

    async def test() -> None:
        engine = Watched(lambda: (scheduler, None))
        assert engine.thread.stalled == 0  # it loads
        await engine.ready()
        box = mailbox()
        engine.thread.submit([3], box)
        while engine.thread.stalled < 0.05:
            await asyncio.sleep(0.01)
        assert not engine.thread.is_stuck  # it is as long as a step may take
        going.set()
        await everything(box)
        while engine.thread.stalled:
            await asyncio.sleep(0.01)
        await engine.end()

    run(test)


def test_prompts_are_reported_while_they_are_run_and_tokens_to_those_who_watch() -> None:
    class Reading(FakeScheduler):
        """A prompt of four tokens, of which a step runs two, before the chunks."""

        def step(self) -> Sequence[FakeEvent]:
            for handle in self.handles:
                handle.usage = Usage(prompt_tokens=4, completion_tokens=handle.done)
            if any(handle.prefilled < 4 for handle in self.handles):
                for handle in self.handles:
                    handle.prefilled = min(4, handle.prefilled + 2)
                return []
            return super().step()

    async def test() -> None:
        engine = Watched(lambda: (Reading(), None))
        await engine.ready()
        watched = Mailbox(1, on_overflow=lambda: None, watched=True)
        engine.thread.submit([2], watched)
        seen = []
        while items := await watched.take():
            seen += [(len(item.chunks), item.progress) for item in items]
        assert [count for count, _ in seen] == [0, 0, 1, 1]
        assert [progress and progress.prefilled for _, progress in seen] == [2, 4, 4, 4]
        assert [p and p.usage.completion_tokens for _, p in seen] == [0, 0, 1, 2]
        plain, seen = mailbox(), []
        engine.thread.submit([2], plain)
        while items := await plain.take():
            seen += [(len(item.chunks), item.progress) for item in items]
        assert [progress and progress.prefilled for _, progress in seen] == [2, 4, None, None]
        await engine.end()

    run(test)


def test_a_reader_that_falls_behind_is_cut_off_and_its_chunks_are_dropped() -> None:
    async def test() -> None:
        overflows = []
        engine = Watched(lambda: (FakeScheduler(), None))
        await engine.ready()
        box = Mailbox(1, on_overflow=lambda: overflows.append(True), limit=50)
        engine.thread.submit([10_000], box)
        while not overflows:
            await asyncio.sleep(0.01)
        engine.thread.cancel(box)
        with pytest.raises(RequestError, match="too slowly"):
            await box.take()
        assert overflows == [True]
        await engine.end()

    run(test)
