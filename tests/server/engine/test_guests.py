"""Programs beside other requests in the engine's thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import mlxgen
from mlxgen.engine import Limits, Scheduler, control_options
from mlxgen.engine.options import Options
from mlxgen.errors import ModelError, QueueFullError
from mlxgen.server.call import Steered
from mlxgen.server.engine.guest import GRACE
from mlxgen.server.engine.mailbox import Delivery, Mailbox
from mlxgen.server.engine.thread import State
from mlxgen.server.errors import RequestError
from mlxgen.server.programs.running import Programs

from ...fakes.failing import HOWS, How, Unread, fail
from ...fakes.speaking import Speaker, endless, letters
from ..fakes import WAIT, Watched


class Office:
    """An engine's thread with a scripted model, and the programs in it."""

    def __init__(self, speaker: Speaker, **limits: Any) -> None:
        self.lm = speaker.lm
        self.scheduler = Scheduler(speaker.lm, Limits(**limits))
        self.engine = Watched(lambda: (self.scheduler, None))
        self.programs = Programs(self.engine.thread, timeout=5, most=32)
        self.seen: list[tuple[str, Delivery]] = []

    def control(self, function: Any, prompt: list[int], **options: Any) -> Mailbox:
        box = Mailbox(1, on_overflow=lambda: None, grows=True)
        request = self.lm.prepare(prompt, control_options(options))
        steered = Steered("it", lambda: mlxgen.Program(function))
        self.programs.start(steered, request, opens_text=False, box=box)
        return box

    def submit(self, prompt: list[int], **options: Any) -> Mailbox:
        box = Mailbox(1, on_overflow=lambda: None)
        self.engine.thread.submit([self.lm.prepare(prompt, Options.of(options))], box)
        return box

    async def take(self, name: str, box: Mailbox) -> list[Delivery]:
        found: list[Delivery] = []
        while items := await box.take():
            found += items
            self.seen += [(name, item) for item in items]
        return found


def office(
    test: Callable[[Office], Coroutine[Any, Any, None]], speaker: Speaker, **limits: Any
) -> None:
    async def main() -> None:
        async with asyncio.timeout(3 * WAIT):
            made = Office(speaker, **limits)
            await made.engine.until(State.READY)
            await test(made)
            await made.engine.end()

    asyncio.run(main())


def texts(found: list[Delivery]) -> dict[tuple[int, ...], str]:
    """The text of each branch; what was retracted is taken back."""
    names: dict[int, tuple[int, ...]] = {}
    whole: dict[int, str] = {}
    for item in found:
        if item.branch is not None:
            assert item.place == len(names)
            names[item.place] = item.branch
        for chunk in item.chunks:
            before = whole.get(item.place, "")
            whole[item.place] = before[: len(before) - chunk.retract] + chunk.text
    return {names[place]: text for place, text in whole.items()}


async def forks_and_goes_back(g: mlxgen.Guide) -> int:
    await g.gen(max_tokens=3)
    outer = await g.fork(2)
    here = g.label()
    await g.gen(max_tokens=2 + outer.index)
    await g.backtrack(here)
    await g.fixed("<" * (outer.index + 1))
    inner = await g.fork(2)
    if inner.index:
        await g.gen(max_tokens=4)
    g.append("met", str(g.branch))
    await g.until("met", lambda text: text.count("(") == 4)
    index: int = outer.index
    return index


@pytest.mark.parametrize("companions", [0, 3])
def test_branches_are_those_of_lm_control(companions: int) -> None:
    speaker = endless()
    prompt = [ord("?")]
    run = speaker.lm.control(prompt, mlxgen.Program(forks_and_goes_back))
    for _ in run:
        pass
    wanted = {branch: result.text for branch, result in run.results.items()}
    assert len(wanted) == 4

    async def test(made: Office) -> None:
        others = [made.submit(prompt, max_tokens=60) for _ in range(companions)]
        box = made.control(forks_and_goes_back, prompt)
        found, *rest = await asyncio.gather(
            made.take("program", box), *(made.take("other", other) for other in others)
        )
        assert texts(found) == wanted
        values = {item.place: item.facts["value"] for item in found if item.facts is not None}
        assert sorted(values.values()) == [0, 0, 1, 1]
        for each in rest:
            assert "".join(c.text for item in each for c in item.chunks) == letters(60)
        assert box.finished and len(box.usages) == 4
        assert not made.scheduler.busy
        made.scheduler.check_integrity()

    office(test, speaker, max_batch=8)


def test_while_a_program_decides_others_go_on_and_its_places_are_free() -> None:
    gate = threading.Event()

    async def waits(g: mlxgen.Guide) -> None:
        await g.fork(2)
        await g.gen(max_tokens=1)
        assert gate.wait(WAIT)
        await g.gen(max_tokens=1)

    async def test(made: Office) -> None:
        box = made.control(waits, [1, 2, 3])
        first = made.submit([1], max_tokens=40)
        second = made.submit([2], max_tokens=40)  # both places are needed for these
        for other in (first, second):
            assert sum(len(item.chunks) for item in await made.take("other", other)) == 40
        gate.set()
        assert {len(text) for text in texts(await made.take("program", box)).values()} == {2}

    office(test, endless(), max_batch=2)


def test_a_fork_of_a_long_prompt_stalls_nobody() -> None:
    async def forks(g: mlxgen.Guide) -> None:
        await g.fork(3)
        await g.gen(max_tokens=2)

    async def test(made: Office) -> None:
        other = made.submit([5], max_tokens=200)
        taking = asyncio.create_task(made.take("other", other))
        while not made.seen:
            await asyncio.sleep(0.001)
        box = made.control(forks, [1 + i % 90 for i in range(480)])
        found = await made.take("program", box)
        assert len(texts(found)) == 3
        await taking
        before = next(i for i, (name, item) in enumerate(made.seen) if name == "program")
        count = sum(len(item.chunks) for name, item in made.seen[:before] if name == "other")
        assert count >= 20, "it went on while the prompt was run"

    office(test, endless(), max_batch=8, prefill_chunk=16)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("slow", [False, True])
def test_a_request_that_the_model_fails_with_harms_no_program_and_none_harms_a_request(
    how: How, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def writes(g: mlxgen.Guide) -> None:
        fork = await g.fork(2)
        for _ in range(8):
            await g.gen(max_tokens=2 + fork.index)
            if slow:
                time.sleep(2 * GRACE)

    async def poisons(g: mlxgen.Guide) -> None:
        await g.gen(max_tokens=3)
        await g.fixed("~")
        await g.gen(max_tokens=3)

    async def test(made: Office) -> None:
        fail(speaker, lambda history: ord("~") in history, how, Unread(monkeypatch))
        other = made.submit([5], max_tokens=150)
        good = made.control(writes, [1])
        ill = made.submit([2, ord("~")], max_tokens=9)
        bad = made.control(poisons, [3])
        found = await asyncio.gather(
            made.take("other", other),
            made.take("good", good),
            made.take("ill", ill),
            made.take("bad", bad),
            return_exceptions=True,
        )
        assert isinstance(found[2], ModelError) and isinstance(found[3], ModelError)
        assert not isinstance(found[0], BaseException) and not isinstance(found[1], BaseException)
        assert "".join(c.text for item in found[0] for c in item.chunks) == letters(150)
        assert texts(found[1]) == {(): letters(16), (1,): letters(24)}
        made.scheduler.check_integrity()

    speaker = endless()
    office(test, speaker, max_batch=8)


def test_a_program_that_asks_for_ever_stalls_nobody() -> None:
    async def churns(g: mlxgen.Guide) -> None:
        while True:
            here = g.label()
            await g.fixed("x")
            await g.backtrack(here)

    async def test(made: Office) -> None:
        boxes = [made.control(churns, [1]) for _ in range(3)]
        takers = [asyncio.create_task(made.take("churn", box)) for box in boxes]
        found = await made.take("other", made.submit([5], max_tokens=30))
        assert sum(len(item.chunks) for item in found) == 30
        for box, taker in zip(boxes, takers, strict=True):
            made.engine.thread.cancel(box)
            taker.cancel()

    office(test, endless())


def test_waiting_branches_of_all_programs_together_are_bounded() -> None:
    gate = threading.Event()

    async def forks_and_waits(g: mlxgen.Guide) -> None:
        await g.fork(3)
        gate.wait()

    async def test(made: Office) -> None:
        full = made.control(forks_and_waits, [1])
        while len(made.scheduler._everywhere) < 3:
            await asyncio.sleep(0.001)
        with pytest.raises(QueueFullError, match="programs have too many branches"):
            await made.take("program", made.control(forks_and_waits, [1]))
        gate.set()
        assert len(texts(await made.take("program", full))) == 3

    office(test, endless(), max_batch=2, max_queue=3)


def test_a_program_whose_client_has_left_ends_with_its_sequences() -> None:
    ended = threading.Event()

    async def endless_program(g: mlxgen.Guide) -> None:
        try:
            await g.fork(2)
            while True:
                await g.token()
        finally:
            ended.set()

    async def test(made: Office) -> None:
        box = made.control(endless_program, [1])
        await box.take()
        made.engine.thread.cancel(box)
        assert await asyncio.to_thread(ended.wait, WAIT)
        while made.scheduler.busy or made.scheduler.stats().queued:
            await asyncio.sleep(0.001)

    office(test, endless(), max_batch=2)


def test_a_program_is_told_when_the_engine_fails() -> None:
    async def endless_program(g: mlxgen.Guide) -> None:
        while True:
            await g.token()

    async def main() -> None:
        speaker = endless()
        made = Office(speaker)
        await made.engine.until(State.READY)
        box = made.control(endless_program, [1])
        await box.take()

        def broken(*_: Any) -> Any:
            raise RuntimeError("the device is gone")

        made.scheduler.step = broken  # type: ignore[method-assign]
        await made.engine.until(State.FAILED)
        until = time.monotonic() + WAIT
        while any(thread.name == "program it" for thread in threading.enumerate()):
            assert time.monotonic() < until
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_too_many_stuck_programs_refuse_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr("mlxgen.server.programs.running.MOST_STUCK", 2)

    async def hangs(g: mlxgen.Guide) -> None:
        gate.wait()

    async def test(made: Office) -> None:
        made.programs._timeout = 0.05
        for _ in range(2):
            box = made.control(hangs, [1])
            with pytest.raises(RequestError, match="has not said for"):
                await made.take("program", box)
            made.engine.thread.cancel(box)
        with pytest.raises(RequestError, match="2 programs have not returned") as refused:
            made.control(hangs, [1])
        assert refused.value.status == 503
        gate.set()
        while any(thread.name == "program it" for thread in threading.enumerate()):
            await asyncio.sleep(0.001)

        async def fine(g: mlxgen.Guide) -> None:
            await g.fixed("x")

        assert texts(await made.take("program", made.control(fine, [1]))) == {(): "x"}

    office(test, endless())
