"""A scheduler without a model, and the smallest things around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from mlxgen.engine import Chunk, Progress, Usage
from mlxgen.server.engine.thread import EngineThread

WAIT = 30.0  # seconds after which a test fails instead of hanging


@dataclass(eq=False)
class FakeTicket:
    row: Any
    usage: Usage = field(default_factory=Usage)
    done: int = 0
    prefilled: int = 0

    @property
    def progress(self) -> Progress:
        return Progress(self.usage, self.prefilled)


class FakeEvent(NamedTuple):
    handle: FakeTicket
    chunks: list[Chunk]
    error: Exception | None = None


class FakeScheduler:
    """A row is a number: so many chunks come of it, one each step. An error as a row is raised."""

    def __init__(self, before_step: Callable[[FakeScheduler], None] | None = None) -> None:
        self.handles: list[FakeTicket] = []
        self.cancelled: list[FakeTicket] = []
        self.closed = False
        self.owners: list[str] = []
        self.steps = 0
        self._before_step = before_step

    @property
    def busy(self) -> bool:
        return bool(self.handles)

    @property
    def waiting(self) -> list[FakeTicket]:
        return []

    def submit(self, row: Any, *, owner: str = "") -> FakeTicket:
        if isinstance(row, Exception):
            raise row
        self.owners.append(owner)
        handle = FakeTicket(row)
        self.handles.append(handle)
        return handle

    def step(self) -> Sequence[FakeEvent]:
        self.steps += 1
        if self._before_step is not None:
            self._before_step(self)
        events = []
        for handle in list(self.handles):
            handle.done += 1
            ends = handle.done >= handle.row
            handle.usage = Usage(prompt_tokens=1, completion_tokens=handle.done)
            chunk = Chunk("x", 0, handle.done - 1, finish_reason="length" if ends else None)
            events.append(FakeEvent(handle, [chunk]))
            if ends:
                self.handles.remove(handle)
        return events

    def cancel(self, handle: FakeTicket) -> None:
        self.cancelled.append(handle)
        if handle in self.handles:
            self.handles.remove(handle)

    def rest(self) -> None:
        pass

    def close(self, flush: float | None = None) -> None:
        self.closed = True

    def stats(self) -> Any:
        return SimpleNamespace(running=len(self.handles), steps=self.steps)


class Watched:
    """An engine's thread around a scheduler, and the errors with which it failed."""

    def __init__(self, boot: Callable[[], tuple[Any, Any]]) -> None:
        self.failures: list[BaseException] = []
        loop = asyncio.get_running_loop()
        self.thread: Any = EngineThread(boot, self.failures.append, loop=loop)
        self.thread.start()

    async def ready(self) -> Any:
        """What was loaded; raises why it could not be."""
        async with asyncio.timeout(WAIT):
            return await self.thread.ready

    async def end(self) -> None:
        self.thread.stop()
        async with asyncio.timeout(WAIT):
            await self.thread.gone
        assert self.thread.join(WAIT) and not self.failures
