"""Programs beside other requests in the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import mlxgen
from mlxgen.engine import Limits, Scheduler, control_options
from mlxgen.engine.options import Options
from mlxgen.errors import ModelError
from mlxgen.server.engine.mailbox import Delivery, Mailbox
from mlxgen.server.engine.running import Running
from mlxgen.server.errors import RequestError
from mlxgen.server.registry import SlowCalls, Steered

from ...fakes.failing import HOWS, How, Unread, fail
from ...fakes.speaking import Speaker, endless, letters
from ..fakes import WAIT, Watched


class Office:
    """An engine's thread with a scripted model, and the programs in it."""

    def __init__(self, speaker: Speaker, **limits: Any) -> None:
        self.lm = speaker.lm
        self.scheduler = Scheduler(speaker.lm.runtime, Limits(**limits))
        self.engine = Watched(lambda: (self.scheduler, None))
        self.slow = SlowCalls()
        self.seen: list[tuple[str, Delivery]] = []

    def control(self, function: Any, prompt: list[int], **options: Any) -> Mailbox:
        box = Mailbox(1, on_overflow=lambda: None, grows=True)
        request = self.lm.runtime.prepare(prompt, control_options(options))
        steered = Steered("it", lambda: mlxgen.Program(function))
        self.engine.thread.steer(Running(steered, request, box, self.slow, opens_text=False))
        return box

    def submit(self, prompt: list[int], **options: Any) -> Mailbox:
        box = Mailbox(1, on_overflow=lambda: None)
        self.engine.thread.submit([self.lm.runtime.prepare(prompt, Options.of(options))], box)
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
            await made.engine.ready()
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
def test_a_request_that_the_model_fails_with_harms_no_program_and_none_harms_a_request(
    how: How, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def writes(g: mlxgen.Guide) -> None:
        fork = await g.fork(2)
        for _ in range(8):
            await g.gen(max_tokens=2 + fork.index)

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


def test_a_program_that_never_gets_on_fails_alone() -> None:
    async def churns(g: mlxgen.Guide) -> None:
        while True:
            here = g.label()
            await g.fixed("x")
            await g.backtrack(here)

    async def test(made: Office) -> None:
        other = made.submit([5], max_tokens=30)
        box = made.control(churns, [1])
        with pytest.raises(RequestError):  # or what it wrote is more than anybody reads
            await made.take("churn", box)
        found = await made.take("other", other)
        assert sum(len(item.chunks) for item in found) == 30

    office(test, endless())
