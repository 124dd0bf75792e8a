"""Specifications are tried out in another process before anything here compiles them.

Owns the processes, their limits and what is known of specifications already seen. Must never
know requests. Everything here belongs to the event loop, and nothing of it waits in it: a
schema or an expression that explodes takes a process with it, which is replaced, while the
loop, the engine's thread and requests without filters go on.

Invariant: ``check`` returns or raises within the limits, whatever it is given, and the same
specification is only tried once, however many ask for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..errors import GrammarError
from .calls import RequestError
from .guard_child import LENGTH, OUT_OF_MEMORY, OUT_OF_TIME, Facts, Verdict, packed
from .logs import log, log_failure
from .settings import KEY_VARIABLE

CPU_SECONDS = 0.8  # for one specification; generous: most take milliseconds
WALL_SECONDS = 2.5  # the same where the machine is busy
MEMORY = 128 << 20
STARTING = 60.0  # seconds until a new process has to be ready
_KNOWN = 4096  # verdicts that are remembered
_REASON = 500  # characters of an error


class Guard:
    """A few processes that compile, and the verdicts so far."""

    def __init__(
        self,
        facts: Facts,
        *,
        processes: int = 2,
        wall_seconds: float = WALL_SECONDS,
        costly: Callable[[], None] = lambda: None,
    ) -> None:
        self._facts = packed(facts)
        self._cpu_seconds = facts.cpu_seconds
        self._memory = facts.memory
        self._wall_seconds = wall_seconds
        self._count = processes
        self._idle: asyncio.Queue[_Child] = asyncio.Queue()
        self._children: set[_Child] = set()
        self._known: OrderedDict[bytes, str | None] = OrderedDict()
        self._trials: dict[bytes, asyncio.Task[str | None]] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._began = False  # whether a process was ready once
        self._closed = False
        self._costly = costly  # told of each one that took too long or too much memory

    def start(self) -> None:
        """Begin to start the processes."""
        for _ in range(self._count):
            self._replace()

    async def close(self) -> None:
        """End the processes."""
        self._closed = True
        tasks = [*self._starting, *self._trials.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(child.end() for child in self._children))

    @property
    def idle(self) -> int:
        """How many processes wait for something to compile."""
        return self._idle.qsize()

    def knows(self, specs: tuple[Any, ...]) -> bool:
        """Whether all of these were tried and are good; then they need no ``check``."""
        return all(self._known.get(_digest(spec), "unknown") is None for spec in specs)

    async def check(self, spec: Any) -> None:
        """Raise GrammarError for what cannot be compiled in reason, with the reason.

        RequestError (503) when no process became free: too many new specifications at once.
        """
        digest = _digest(spec)
        if digest in self._known:
            self._known.move_to_end(digest)
            error = self._known[digest]
        else:
            trial = self._trials.get(digest)
            if trial is None:
                trial = self._trials[digest] = asyncio.create_task(self._try(spec))
                trial.add_done_callback(lambda done: self._remember(digest, done))
            error = await asyncio.shield(trial)
        if error is not None:
            raise GrammarError(error)

    def _remember(self, digest: bytes, trial: asyncio.Task[str | None]) -> None:
        del self._trials[digest]
        if trial.cancelled() or trial.exception() is not None:
            return
        self._known[digest] = trial.result()
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    async def _try(self, spec: Any) -> str | None:
        try:
            message = packed(spec)
        except Exception as error:
            return f"it cannot be compiled ({type(error).__name__})"
        try:
            patience = self._wall_seconds if self._began else STARTING
            child = await asyncio.wait_for(self._idle.get(), patience)
        except TimeoutError:
            raise RequestError(
                "too many new grammars are being compiled; try again in a moment",
                status=503,
                code="compiler_busy",
            ) from None
        try:
            verdict = await asyncio.wait_for(child.ask(message), self._wall_seconds)
        except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            status = await child.end()
            self._replace(child)
            self._costly()
            log(logging.WARNING, "a grammar was too costly to compile", status=status)
            return self._reason(status, late=isinstance(error, TimeoutError))
        if verdict.worn:
            await child.end()
            self._replace(child)
        else:
            self._idle.put_nowait(child)
        return None if verdict.error is None else _short(verdict.error)

    def _reason(self, status: int, *, late: bool) -> str:
        if status == OUT_OF_MEMORY:
            return f"it takes more than {self._memory >> 20} MiB to compile; make it simpler"
        if late or status == OUT_OF_TIME:
            return f"it takes more than {self._cpu_seconds:g} s to compile; make it simpler"
        return "it cannot be compiled; make it simpler"

    def _replace(self, ended: _Child | None = None) -> None:
        """Start a process, in place of one that has ended."""
        if ended is not None:
            self._children.discard(ended)
        if self._closed:
            return
        task = asyncio.create_task(self._add())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _add(self) -> None:
        for pause in (0.0, 1.0, 5.0, 30.0):
            await asyncio.sleep(pause)
            try:
                child = await _Child.start()
            except OSError as error:
                log_failure("a process for compiling grammars did not start", error)
                continue
            self._children.add(child)
            try:
                await asyncio.wait_for(child.ask(self._facts), STARTING)
            except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
                log_failure("a process for compiling grammars did not start", error)
                await child.end()
                self._children.discard(child)
                continue
            self._began = True
            self._idle.put_nowait(child)
            return


class _Child:
    """One process, and the pipe to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> _Child:
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
        return cls(process)

    async def ask(self, message: bytes) -> Verdict:
        """Send a message and wait for the verdict."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(message)
        await self._process.stdin.drain()
        head = await self._process.stdout.readexactly(LENGTH.size)
        data = await self._process.stdout.readexactly(LENGTH.unpack(head)[0])
        return Verdict(*json.loads(data))

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


def _digest(spec: Any) -> bytes:
    try:
        data = pickle.dumps(spec)
    except Exception:  # `_try` says so
        data = repr(spec).encode(errors="replace")
    return hashlib.blake2b(data, digest_size=20).digest()


def _short(text: str) -> str:
    return text if len(text) <= _REASON else f"{text[: _REASON - 3]}..."
