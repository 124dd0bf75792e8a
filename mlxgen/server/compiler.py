"""One process that tries grammars out, as its parent sees it.

Owns the process, the pipe to it, and the difference between a verdict and a loss: a process
that used up its processor time or its memory has judged; one that was killed, that does not
answer, or that stands still has said nothing of the grammar. Must never know what is done with
a verdict. It belongs to the event loop.

What limits a grammar is the processor time of its process. The times here are a last resort
against processes that stand still, and they only run while this process does: a machine that
sleeps, or a server that is stopped, makes nothing late.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import os
import signal
import sys
from collections.abc import Awaitable
from typing import TypeVar

from .guard_child import LENGTH, OUT_OF_MEMORY, OUT_OF_TIME, Verdict
from .settings import KEY_VARIABLE

STARTING = 60.0  # seconds until a new process has to be ready
ANSWERING = 5.0  # seconds until a process has to begin what it is sent
STANDING = 60.0  # seconds that one grammar may take where its processor time does not run
_LOOK = 0.25  # seconds between two looks at the time
_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)

T = TypeVar("T")


class Loss(enum.Enum):
    """What became of a process that gave no verdict."""

    TIME = "it used up its processor time"
    MEMORY = "it used up its memory"
    CRASH = "it crashed"
    GONE = "it was lost"  # and may not even have begun


class LostError(Exception):
    """A process ended, or does not answer; it must not be used any more."""

    def __init__(self, loss: Loss, status: int) -> None:
        super().__init__(f"{loss.value} (status {status})")
        self.loss = loss
        self.status = status


class Compiler:
    """A process; ``start`` one, ``judge`` with it until it is lost or worn, ``end`` it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, facts: bytes) -> Compiler:
        """A process that is ready. OSError or LostError if that fails."""
        environment = {k: v for k, v in os.environ.items() if k != KEY_VARIABLE}
        environment |= {"OPENBLAS_NUM_THREADS": "1"}
        flags = ["-P"] if sys.flags.safe_path else []
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *flags,
            "-m",
            "mlxgen.server.guard_child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # an interrupt typed at the terminal is not for it
        )
        compiler = cls(process)
        try:
            await compiler._ask(facts, STARTING)
        except asyncio.CancelledError:
            await compiler.end()
            raise
        return compiler

    async def judge(self, spec: bytes) -> Verdict:
        """What comes of a specification. LostError; then the process has ended."""
        return await self._ask(spec, ANSWERING)

    async def _ask(self, message: bytes, answering: float) -> Verdict:
        try:
            await within(answering, self._send(message))
            return Verdict(*json.loads(await within(STANDING, self._read())))
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            status = await self.end()
            raise LostError(_loss(status), status) from None

    async def _send(self, message: bytes) -> None:
        """Send a message, and wait until it was taken in."""
        assert self._process.stdin is not None
        self._process.stdin.write(message)
        await self._process.stdin.drain()
        await self._read()

    async def _read(self) -> bytes:
        assert self._process.stdout is not None
        head = await self._process.stdout.readexactly(LENGTH.size)
        return await self._process.stdout.readexactly(LENGTH.unpack(head)[0])

    async def ended(self) -> int:
        """Wait until the process ends; its exit status."""
        return await self._process.wait()

    async def end(self) -> int:
        """End it, unless it has ended by itself, and wait for it; its exit status."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            return await asyncio.wait_for(self._process.wait(), 0.05)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            return await self._process.wait()


def _loss(status: int) -> Loss:
    if status == OUT_OF_MEMORY:
        return Loss.MEMORY
    if status == OUT_OF_TIME:
        return Loss.TIME
    return Loss.CRASH if status > 0 or -status in _CRASHES else Loss.GONE


async def within(seconds: float, work: Awaitable[T]) -> T:
    """As ``asyncio.wait_for``; time in which this process stood still does not count."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    try:
        while seconds > 0:
            began = loop.time()
            await asyncio.wait({task}, timeout=min(seconds, _LOOK))
            if task.done():
                return task.result()
            seconds -= min(loop.time() - began, 2 * _LOOK)
        raise TimeoutError
    finally:
        task.cancel()
