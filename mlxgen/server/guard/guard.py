"""Specifications are tried out in another process before this one compiles them.

Owns the processes, who gets one, and the verdicts on specifications already seen. Must never know
requests. Everything here belongs to the event loop and never blocks it: a schema or an expression
that explodes only takes a process with it, which is replaced, while the loop, the engine's thread
and requests without filters continue.

A process that ends is replaced, for whatever reason and however often. A specification whose
process was lost is tried again in another one; only verdicts are remembered.

Invariant: ``check`` returns or raises within the limits for any input, and a specification is
tried only once, however many requests ask for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from ...errors import GrammarError
from ..errors import RequestError
from ..line import CrowdedError, Line, Turn
from ..logs import log, log_failure
from .child import Facts, Verdict
from .compiler import STARTING, Compiler, Loss, LostError, within

CPU_SECONDS = 0.8  # for one specification; most take milliseconds
MEMORY = 128 << 20
PATIENCE = 10.0  # seconds to wait for a free process
HEAVY = 16 << 10  # bytes of a specification that may not take the last free process
_ATTEMPTS = 3  # processes that one specification may lose
_PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0)  # seconds before another process starts; the last repeats
_KNOWN = 4096  # verdicts that are remembered


class Guard:
    """A few processes that compile, and their verdicts so far."""

    def __init__(
        self,
        facts: Facts,
        *,
        processes: int = 2,
        patience: float = PATIENCE,
        costly: Callable[[], None] = lambda: None,
    ) -> None:
        self._facts = pickle.dumps(facts)
        self._cpu_seconds = facts.cpu_seconds
        self._memory = facts.memory
        self._patience = patience
        self._count = processes
        self._line = Line()
        self._idle: list[Compiler] = []
        self._trials: OrderedDict[bytes, asyncio.Task[Verdict]] = OrderedDict()
        self._keepers: list[asyncio.Task[None]] = []
        self._began = False  # whether a process has ever been ready
        self._costly = costly  # called for each one that took too much time or memory

    def start(self) -> None:
        """Start the processes, which otherwise start when there is something to try."""
        self._keepers = [asyncio.create_task(self._keep()) for _ in range(self._count)]

    async def close(self) -> None:
        """End the processes."""
        tasks: list[asyncio.Task[Any]] = [*self._trials.values(), *self._keepers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def idle(self) -> int:
        """How many processes are idle."""
        return len(self._idle)

    def seconds(self, specs: Iterable[Any]) -> float:
        """Processor time that the trials of these took, as far as it is known."""
        trials = (self._trials.get(_digest(_packed(spec))) for spec in specs)
        return sum(one.result().seconds for one in trials if one is not None and one.done())

    async def check(self, spec: Any, client: str = "") -> None:
        """Raise ``GrammarError``, with the reason, for what cannot be compiled within the limits.

        Raises ``RequestError`` (503) if no process became free or each one was lost, which says
        nothing about the specification.
        """
        if not self._keepers:
            self.start()
        message = _packed(spec)
        digest = _digest(message)
        verdict: Verdict | None = None
        while verdict is None:
            trial = self._trials.get(digest)
            own = trial is None
            if trial is None:
                trial = self._trials[digest] = asyncio.create_task(self._try(message, client))
                trial.add_done_callback(lambda done: self._settle(digest, done))
            try:
                verdict = await asyncio.shield(trial)
            except RequestError:  # another client waited too long; this one may not have
                if own:
                    raise
        if digest in self._trials:
            self._trials.move_to_end(digest)
        if verdict.error is not None:
            raise GrammarError(verdict.error)

    async def check_all(self, specs: Iterable[Any], client: str = "") -> None:
        """``check`` each of them."""
        for spec in specs:
            await self.check(spec, client)

    def _settle(self, digest: bytes, trial: asyncio.Task[Verdict]) -> None:
        """Remember a trial if it has a verdict."""
        if trial.cancelled() or trial.exception() is not None:
            del self._trials[digest]
        while len(self._trials) > _KNOWN and next(iter(self._trials.values())).done():
            self._trials.popitem(last=False)

    # ---- one specification -------------------------------------------------------------------

    async def _try(self, message: bytes, client: str) -> Verdict:
        crashed = False
        for _ in range(_ATTEMPTS):
            turn = await self._turn(client, heavy=len(message) > HEAVY)
            spent = 0.0
            try:
                verdict = await self._judged(message)
                spent = verdict.seconds
                return verdict
            except LostError as lost:
                if lost.loss in (Loss.TIME, Loss.MEMORY) or (lost.loss is Loss.CRASH and crashed):
                    spent = self._cpu_seconds
                    self._costly()
                    log(logging.WARNING, "a grammar was too costly to compile", status=lost.status)
                    return Verdict(self._reason(lost.loss), seconds=spent)
                crashed = lost.loss is Loss.CRASH
                log(
                    logging.WARNING, "a process for compiling grammars was lost", status=lost.status
                )
            finally:
                self._line.leave(turn, spent)
        raise RequestError(
            "the processes that compile grammars keep failing; try again in a moment",
            status=503,
            code="compiler_lost",
        )

    async def _turn(self, client: str, *, heavy: bool) -> Turn:
        try:
            patience = self._patience if self._began else STARTING
            return await within(patience, self._line.enter(client, heavy=heavy))
        except (TimeoutError, CrowdedError):
            raise RequestError(
                "too many new grammars are being compiled; try again in a moment",
                status=503,
                code="compiler_busy",
            ) from None

    async def _judged(self, message: bytes) -> Verdict:
        if not self._idle:  # it has just ended
            raise LostError(Loss.GONE, 0)
        compiler = self._idle.pop(0)
        verdict = await compiler.judge(message)
        if verdict.worn:
            await compiler.end()
        else:
            self._idle.append(compiler)
        return verdict

    def _reason(self, loss: Loss) -> str:
        if loss is Loss.MEMORY:
            return f"it takes more than {self._memory >> 20} MiB to compile; simplify it"
        if loss is Loss.TIME:
            return f"it takes more than {self._cpu_seconds:g} s to compile; simplify it"
        return "it cannot be compiled; simplify it"

    # ---- the processes -----------------------------------------------------------------------

    async def _keep(self) -> None:
        """Keep one process running while the guard is open."""
        failures = 0
        while True:
            try:
                compiler = await Compiler.start(self._facts)
            except (OSError, LostError) as error:
                if not failures:
                    log_failure("a process for compiling grammars did not start", error)
                await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
                failures += 1
                continue
            failures = 0
            self._began = True
            self._idle.append(compiler)
            self._line.open()
            try:
                await compiler.ended()
            finally:
                self._line.shut()
                if compiler in self._idle:
                    self._idle.remove(compiler)
                await compiler.end()


def _packed(spec: Any) -> bytes:
    try:
        return pickle.dumps(spec)
    except Exception as error:
        raise GrammarError(f"it cannot be compiled ({type(error).__name__})") from error


def _digest(message: bytes) -> bytes:
    return hashlib.blake2b(message, digest_size=20).digest()
