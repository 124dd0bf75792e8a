"""Finding an engine dead that is, and none that was asleep or had nothing to do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from mlxgen.server.engine.mailbox import Mailbox
from mlxgen.server.engine.pulse import Pulse
from mlxgen.server.engine.thread import State

from ..fakes import WAIT, FakeScheduler, Watched


def pulse(limit: float = 10.0) -> Pulse:
    return Pulse(lambda: None, limit, tick=1.0)


def test_an_engine_is_missing_after_so_long_without_a_step_and_no_more_after_one() -> None:
    seen = pulse()
    for second in range(11):
        assert not seen.is_missing
        seen.saw(7, float(second))
    assert seen.is_missing and seen.seconds == 10
    seen.saw(8, 11.0)
    assert not seen.is_missing


def test_one_that_has_nothing_to_do_is_never_missing() -> None:
    seen = pulse()
    for second in range(100):
        seen.saw(None, float(second))
        assert not seen.is_missing


def test_time_in_which_nobody_could_look_does_not_count() -> None:
    seen = pulse()
    for second in range(5):
        seen.saw(7, float(second))
    seen.saw(7, 10_000.0)  # the machine slept
    assert not seen.is_missing
    seen.saw(8, 10_001.0)
    assert seen.seconds == 0


async def until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("where", ["step", "submit"])
def test_the_engines_thread_shows_where_it_hangs_and_that_it_goes_on(where: str) -> None:
    going = threading.Event()

    class Hanging(FakeScheduler):
        def submit(self, row: object, *, owner: str = "") -> object:  # type: ignore[override]
            if where == "submit":
                going.wait(WAIT)
            return super().submit(row)

    def wait(_: FakeScheduler) -> None:
        if where == "step":
            going.wait(WAIT)

    async def test() -> None:
        engine = Watched(lambda: (Hanging(wait), None))
        assert engine.thread.beats is None  # it loads
        await engine.until(State.READY)
        seen = Pulse(lambda: engine.thread.beats, 0.05, tick=0.01)
        seen.start()
        box = Mailbox(1, on_overflow=lambda: None)
        engine.thread.submit([3], box)
        async with asyncio.timeout(WAIT):
            await until(lambda: seen.is_missing)
            going.set()
            while await box.take():
                pass
            await until(lambda: not seen.is_missing and engine.thread.beats is None)
        seen.close()
        await engine.end()

    asyncio.run(test())
