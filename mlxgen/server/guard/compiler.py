"""One process that tries out grammars, as its parent sees it.

Owns the process, the pipe to it, and the difference between a verdict and a loss: a process
that used up its processor time or its memory has given a verdict; one that was killed, does not
answer or stands still has said nothing about the grammar. Must never know what follows from a
verdict. It belongs to the event loop.

A grammar is limited by the processor time of its process. The times here are a last resort
against processes that stand still, and they only run while this process does: after sleep, or
after the server was stopped, nothing is late.
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

from ..settings import KEY_VARIABLE
from .child import OUT_OF_MEMORY, OUT_OF_TIME, Verdict

STARTING = 60.0  # seconds for a new process to get ready
ANSWERING = 5.0  # seconds for a process to begin what it was sent
STANDING = 60.0  # seconds for one grammar, if its processor time does not run
_LOOK = 0.25  # seconds between two checks of the time
_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)

T = TypeVar("T")


class Loss(enum.Enum):
    """Why a process gave no verdict."""

    TIME = "it used up its processor time"
    MEMORY = "it used up its memory"
    CRASH = "it crashed"
    GONE = "it was lost"  # perhaps before it began


class LostError(Exception):
    """A process ended or does not answer; it must not be used again."""

    def __init__(self, loss: Loss, status: int) -> None:
        super().__init__(f"{loss.value} (status {status})")
        self.loss = loss
        self.status = status


class Compiler:
    """A process: ``start`` it, ``judge`` with it until it is lost or worn, then ``end`` it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, facts: bytes) -> Compiler:
        """A process that is ready; raises ``OSError`` or ``LostError`` if it does not start."""
        environment = {k: v for k, v in os.environ.items() if k != KEY_VARIABLE}
        environment |= {"OPENBLAS_NUM_THREADS": "1"}
        flags = ["-P"] if sys.flags.safe_path else []
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *flags,
            "-m",
            "mlxgen.server.guard.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C at the terminal is not for it
        )
        compiler = cls(process)
        try:
            await compiler._ask(facts, STARTING)
        except asyncio.CancelledError:
            await compiler.end()
            raise
        return compiler

    async def judge(self, spec: bytes) -> Verdict:
        """The verdict on a specification. After a ``LostError`` the process has ended."""
        return await self._ask(spec, ANSWERING)

    async def _ask(self, message: bytes, answering: float) -> Verdict:
        try:
            await within(answering, self._send(message))
            return Verdict(*json.loads(await within(STANDING, self._read())))
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            status = await self.end()
            raise LostError(_loss(status), status) from None

    async def _send(self, message: bytes) -> None:
        """Send a message, and wait until it has arrived."""
        assert self._process.stdin is not None
        self._process.stdin.write(message)
        await self._process.stdin.drain()
        await self._read()

    async def _read(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.readuntil()

    async def ended(self) -> int:
        """Wait until the process ends; returns its exit status."""
        return await self._process.wait()

    async def end(self) -> int:
        """End the process if it is still running; returns its exit status."""
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
    """Like ``asyncio.wait_for``, but time while this process stands still does not count."""
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
