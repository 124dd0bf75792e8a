"""The lanes in which requests are understood, and how they say that they are stuck."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mlxgen.server import jobs
from mlxgen.server.jobs import QUICK_THREADS, SHORT, SLOW_THREADS, Lanes


@pytest.mark.parametrize(("size", "threads"), [(1, QUICK_THREADS), (SHORT + 1, SLOW_THREADS)])
def test_a_lane_that_never_ends_what_it_does_is_stuck(
    monkeypatch: pytest.MonkeyPatch, size: int, threads: int
) -> None:
    async def scene() -> None:
        lanes = Lanes()
        over, begun = threading.Event(), threading.Semaphore(0)

        def work() -> None:
            begun.release()
            over.wait()

        works = [lambda: work() for _ in range(threads)]
        jobs = []
        for i, each in enumerate(works):
            assert not lanes.stuck, i
            jobs.append(asyncio.create_task(lanes.run(size, each)))
            await asyncio.to_thread(begun.acquire)
        assert "do not end" in str(lanes.stuck)
        over.set()
        await asyncio.gather(*jobs)
        assert not lanes.stuck
        assert await lanes.close()

    monkeypatch.setattr(jobs, "STUCK", 0.0)
    asyncio.run(scene())


def test_lanes_that_are_only_busy_are_not_stuck() -> None:
    async def scene() -> None:
        lanes = Lanes()
        over = threading.Event()
        jobs = [asyncio.create_task(lanes.run(1, lambda: over.wait())) for _ in range(9)]
        await asyncio.sleep(0.05)
        assert lanes.stuck is None
        over.set()
        await asyncio.gather(*jobs)
        await lanes.close()

    asyncio.run(scene())
