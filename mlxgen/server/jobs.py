"""From the bytes of a body to sequences that are ready to run, in threads of their own.

Owns the threads in which requests are parsed, chats rendered, prompts tokenized and grammars
compiled. Must never know HTTP or the engine's thread. There are two lanes, so that a short
request never waits for a megabyte of prompt or a costly grammar, and in the slow one clients take
turns. The guard tries out what may cost too much; requests without filters never ask it.

Invariant: what comes out is fully checked, or an error that says what is wrong is raised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..chat.calls.held import HeldCalls
from ..engine import Request
from ..errors import FilterError, GrammarError
from .call import Call, Job
from .errors import RequestError
from .guard.guard import Guard
from .line import CrowdedError, Line
from .openai.constraints import constraining
from .remote_images import RemoteImages
from .served_model import ServedModel

SHORT = 16 << 10  # bytes of a body
COSTLY = 0.05  # seconds of compiling
QUICK_THREADS = 3
SLOW_THREADS = 2
_PATIENCE = 20  # tenths of a second
IMAGES = 2 << 30  # bytes of the pixels of all requests
STUCK = 60.0  # seconds that one piece of work may keep a thread before it is reported

T = TypeVar("T")
Body: TypeAlias = dict[str, Any]
Parse: TypeAlias = Callable[[Mapping[str, Any], ServedModel], Call]


class Prepared(NamedTuple):
    """A parsed request, and its sequences in the order of its jobs."""

    call: Call
    sequences: Sequence[Request]


class Lanes:
    """The threads, for all models."""

    def __init__(self) -> None:
        self._quick = ThreadPoolExecutor(QUICK_THREADS, "prepare")
        self._slow = ThreadPoolExecutor(SLOW_THREADS, "prepare-slow")
        self._line = Line(SLOW_THREADS)  # for the slow lane
        self._running: dict[Callable[[], Any], tuple[ThreadPoolExecutor, float]] = {}
        """Where work is done, and since when."""

    async def close(self) -> bool:
        """Start nothing new, and wait a little for what runs; returns whether all of it ended."""
        for lane in (self._quick, self._slow):
            lane.shutdown(wait=False, cancel_futures=True)
        for _ in range(_PATIENCE):
            if not self._running:
                return True
            await asyncio.sleep(0.1)
        return False

    async def run(
        self, size: int, work: Callable[[], T], client: str = "", *, costly: bool = False
    ) -> T:
        """Run work in a thread: in the slow lane if it is costly or its input is large.

        ``size`` is the bytes of input. Raises ``RequestError`` (503) if this client already waits
        for too much.
        """
        loop = asyncio.get_running_loop()
        if size <= SHORT and not costly:
            return await loop.run_in_executor(self._quick, self._do, self._quick, work)
        try:
            turn = await self._line.enter(client, heavy=costly)
        except CrowdedError:
            raise RequestError(
                "too many of your large requests are being read; send fewer at a time",
                status=503,
                code="preparation_busy",
            ) from None
        began = time.monotonic()

        def leave(done: asyncio.Future[T]) -> None:
            self._line.leave(turn, time.monotonic() - began)
            if not done.cancelled():
                done.exception()  # otherwise asyncio complains if nobody is left to ask

        job = loop.run_in_executor(self._slow, self._do, self._slow, work)
        job.add_done_callback(leave)
        return await asyncio.shield(job)  # a thread continues even if its client has left

    @property
    def stuck(self) -> str | None:
        """Which lane takes no more work because all of its threads have been busy for too long."""
        latest = time.monotonic() - STUCK
        begun = tuple(self._running.values())
        for lane, threads, name in (
            (self._quick, QUICK_THREADS, "short"),
            (self._slow, SLOW_THREADS, "long"),
        ):
            if sum(where is lane and at < latest for where, at in begun) >= threads:
                return f"{name} requests wait for others that do not end"
        return None

    def _do(self, lane: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        self._running[work] = lane, time.monotonic()
        try:
            return work()
        except Exception:
            raise
        except BaseException as error:  # a panic of a library in Rust is not an Exception
            raise RuntimeError(f"a library panicked: {type(error).__name__}") from error
        finally:
            self._running.pop(work, None)


class Preparation:
    """What requests for one model become sequences with. ``prepare`` is ``lm.prepare_all``;
    ``remote`` fetches images, if allowed."""

    def __init__(
        self,
        lanes: Lanes,
        prepare: Callable[[Sequence[Job]], Sequence[Request]],
        model: ServedModel,
        guard: Guard,
        *,
        max_sequences: int,
        remote: RemoteImages | None = None,
    ) -> None:
        self._run = lanes.run
        self._prepare = prepare
        self._model = model
        self._guard = guard
        self._max_sequences = max_sequences
        self._remote = remote

    async def sequences(self, size: int, body: Body, parse: Parse, client: str) -> Prepared:
        """Make the sequences of a body of this size; raises for what is wrong with it."""
        size += await self.fetched(body)
        call, sequences = await self._run(size, lambda: self._understood(body, parse), client)
        if sequences is not None:
            return Prepared(call, sequences)
        try:
            call = await self._compiled(call, client)
            costly = self._guard.seconds(call.specs) > COSTLY
            sequences = await self._run(
                size, lambda: self._prepare(call.jobs), client, costly=costly
            )
        except FilterError as error:
            raise _blamed(error, body, call) from error
        return Prepared(call, sequences)

    async def _compiled(self, call: Call, client: str) -> Call:
        """The call with specifications that compile: if those of calls do not, with looser ones."""
        try:
            await self._guard.check_all(call.specs, client)
            return call
        except GrammarError:
            if call.held is None:
                raise
        loose = await self._loose(call.held, client)
        call = await self._run(0, lambda: call.loosened(loose), client, costly=True)
        await self._guard.check_all(call.specs, client)
        return call

    async def _loose(self, held: HeldCalls, client: str) -> Set[str]:
        """The tools whose schemas cannot be compiled; all, if each of them can."""
        names = [name for name in held.use.names if name not in held.loose]
        alone = await self._run(0, lambda: list(map(held.alone, names)), client, costly=True)
        failed = set()
        for name, spec in zip(names, alone, strict=True):
            try:
                await self._guard.check_all([] if spec is None else [spec], client)
            except GrammarError:
                failed.add(name)
        return held.loose | (failed or set(names))

    async def fetched(self, body: Body) -> int:
        """Put the images that a body names into it; returns their bytes."""
        return 0 if self._remote is None else await self._remote.put_into(body)

    def _understood(self, body: Body, parse: Parse) -> tuple[Call, Sequence[Request] | None]:
        call = parse(body, self._model)
        self._check(call)
        return call, None if call.specs else self._prepare(call.jobs)

    def _check(self, call: Call) -> None:
        if len(call.jobs) > self._max_sequences:
            raise RequestError.at(
                "n",
                f"expected at most {self._max_sequences} answers, as no more may wait here, got "
                f"{len(call.jobs)}; ask for fewer at a time",
            )
        images = self._model.dialect.images
        if images is not None and images.nbytes > IMAGES:
            shown = [token < 0 for job in call.jobs for token in job.prompt.tokens]
            if any(shown):
                raise RequestError(
                    "too many images wait here; send this one again later",
                    status=503,
                    code="images_busy",
                )


def _blamed(error: FilterError, body: Body, call: Call) -> RequestError:
    """A compilation error, with the field that holds the grammar."""
    fields, at = constraining(body), call.params.get("filters", "")
    if at.partition(".")[0] in body and at not in fields:
        fields = [at]
    named = fields[0] if len(fields) == 1 else None
    where = f"{' or '.join(fields)}: " if fields else ""
    return RequestError(f"{where}{error}", status=error.status, param=named, code="invalid_grammar")
