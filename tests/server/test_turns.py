"""The lanes in which requests become rows, and who is next in the slow one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mlxgen.server.errors import RequestError
from mlxgen.server.jobs import SHORT, SLOW_THREADS, Lanes
from mlxgen.server.line import WAITING

LARGE = SHORT + 1


class Work:
    """Work in a thread that lasts until it is let go."""

    def __init__(self, name: str, done: list[str], began: list[str]) -> None:
        self.go = threading.Event()
        self.name = name
        self._done = done
        self._began = began

    def __call__(self) -> str:
        self._began.append(self.name)
        assert self.go.wait(30)
        self._done.append(self.name)
        return self.name


def with_lanes(test: Callable[[Lanes], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        lanes = Lanes()
        async with asyncio.timeout(30):
            await test(lanes)
        assert await lanes.close()

    asyncio.run(run())


async def until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.001)


def test_in_the_slow_lane_clients_take_turns_and_small_work_goes_by() -> None:
    async def test(lanes: Lanes) -> None:
        done: list[str] = []
        began: list[str] = []
        works = [Work(name, done, began) for name in ("a1", "a2", "a3", "a4", "b1")]
        tasks = []
        for work in works:
            tasks.append(asyncio.create_task(lanes.run(LARGE, work, work.name[0])))
            await asyncio.sleep(0)
        await until(lambda: len(began) == SLOW_THREADS)
        assert await lanes.run(SHORT, lambda: "quick", "a") == "quick"
        assert sorted(began) == ["a1", "a2"]
        works[0].go.set()
        await until(lambda: len(began) == 3)
        assert began[2] == "b1"
        for work in works:
            work.go.set()
        assert await asyncio.gather(*tasks) == [work.name for work in works]

    with_lanes(test)


def test_costly_work_leaves_a_thread_of_the_slow_lane_to_others() -> None:
    async def test(lanes: Lanes) -> None:
        began: list[str] = []
        works = [Work(name, [], began) for name in ("a", "b", "c")]
        tasks = [asyncio.create_task(lanes.run(1, work, work.name, costly=True)) for work in works]
        await until(lambda: began == ["a"])
        assert await lanes.run(LARGE, lambda: "large", "d") == "large"
        assert began == ["a"]
        for work in works:
            work.go.set()
        await asyncio.gather(*tasks)

    with_lanes(test)


def test_a_client_that_leaves_keeps_its_place_for_as_long_as_its_thread_runs() -> None:
    async def test(lanes: Lanes) -> None:
        began: list[str] = []
        works = [Work(name, [], began) for name in ("a", "b")]
        for work in works:
            task = asyncio.create_task(lanes.run(LARGE, work, "a"))
            await until(lambda work=work: work.name in began)  # type: ignore[misc]
            task.cancel()
            await asyncio.wait({task})
        waiting = asyncio.create_task(lanes.run(LARGE, lambda: "c", "a"))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        works[0].go.set()
        assert await waiting == "c"
        works[1].go.set()

    with_lanes(test)


def test_a_client_with_too_much_large_work_is_told_to_wait() -> None:
    async def test(lanes: Lanes) -> None:
        work = Work("a", [], [])
        count = WAITING + SLOW_THREADS
        tasks = [asyncio.create_task(lanes.run(LARGE, work, "a")) for _ in range(count)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as caught:
            await lanes.run(LARGE, work, "a")
        assert caught.value.status == 503
        work.go.set()
        assert await lanes.run(LARGE, lambda: "b", "b") == "b"
        await asyncio.gather(*tasks)

    with_lanes(test)
