"""The server's state: what it serves, which requests it is answering, and whether it is open.

Owns the models, the threads of preparation, and the requests that are being answered. Must never
know HTTP beyond the errors that it raises. It belongs to the event loop.

Invariant: ``ended`` is set exactly once, with the exit status, when nothing is left to do; once the
server is stopping or its engine has failed, no request is admitted.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import math
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial

from ..errors import MachineError
from .answers import Answers, Holder
from .engine.boot import EngineBoot, booting
from .errors import RequestError, as_request_error
from .fleet.catalogue import Catalogue
from .fleet.fleet import Boots, Fleet
from .fleet.member import Serving
from .jobs import Workers
from .logs import log, log_failure
from .metrics import Metrics
from .registry import Registry
from .served_model import ServedModel
from .settings import Settings

STOPPED, FAILED, REFUSED = 0, 1, 2  # exit statuses
LEAST_FLUSH = 2.0  # seconds to write prefixes to disk at the end, whatever is left of the grace
FAREWELL = 2.0  # seconds for which a failure is reported before the process ends
BRIEFLY = 0.5  # seconds for a thread to end that may wait for a lost machine for ever
_LEAST_BODY, _MOST_BODY = 1 << 20, 16 << 20
_WITH_IMAGES = 32 << 20  # bytes of a body that may have images in it
_LONGEST_WAIT = 60  # seconds after which to try again, as clients are told
_PER_TOKEN = 64  # bytes of a body for each token of the context; few tokens take more, even escaped


class State(enum.Enum):
    """The state of the server."""

    LOADING = "loading"
    READY = "ready"
    REFUSED = "refused"  # the model could not be loaded
    FAILED = "failed"  # after it was ready


class Service:
    """Everything that requests share; ``boot`` loads the only model in its engine's thread.

    ``device``: the bytes of the device, if not what MLX says.
    """

    def __init__(
        self,
        settings: Settings,
        boot: EngineBoot | None = None,
        *,
        catalogue: Catalogue | None = None,
        device: int | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.workers = Workers()
        self.registry = Registry.of(settings)
        self.visits: set[Holder] = set()
        """The requests being answered."""
        self.answers = Answers()
        self._arrived: set[Holder] = (
            set()
        )  # with their bodies, so that slow senders keep nobody out
        self._typical = 1.0  # seconds that recent requests took
        own = partial(booting, settings, slow=self.registry.slow)
        boots: Boots = own if boot is None else lambda entry, ask: boot
        self.fleet = Fleet(
            catalogue or Catalogue.of(settings),
            settings,
            self.workers,
            boots=boots,
            failed=self.fail,
            device=device,
        )
        self.metrics = Metrics(
            stats=self.fleet.stats,
            is_ready=lambda: self.is_ready,
            loaded=self.fleet.loaded,
            slow=self.registry.slow.counts,
        )
        self.metrics.in_progress.set_function(lambda: len(self.visits))
        self.state = State.LOADING
        self.is_stopping = False
        self.body_limit = _WITH_IMAGES if settings.has_several else _LEAST_BODY
        self.ended: asyncio.Future[int] = loop.create_future()
        self.became_ready: asyncio.Future[None] = loop.create_future()
        self.failure: str | None = None
        """Why the server could not start."""
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._stops_by = -math.inf
        self._lost: MachineError | None = None  # one of several machines

    # ---- what requests ask -------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered."""
        return self.state is State.READY and not self.is_stopping

    @property
    def is_alive(self) -> bool:
        """Whether no engine has failed or hangs."""
        failed = self.state in (State.FAILED, State.REFUSED)
        return not failed and not any(each.engine.is_stuck for each in self.fleet.serving)

    @property
    def status(self) -> str:
        """The server's state in one word."""
        fails = self.state in (State.FAILED, State.REFUSED)
        return "stopping" if self.is_stopping and not fails else self.state.value

    @property
    def stuck(self) -> str | None:
        """Why requests are not parsed or answered, if it is not the server's state that says so."""
        if self._lost is not None:
            return str(self._lost)
        for each in self.fleet.serving:
            if each.engine.is_stuck:
                return f"the engine has taken no step for {each.engine.stalled:.0f} s"
        return None

    @property
    def loaded(self) -> ServedModel | None:
        """The default model, if it is loaded."""
        serving = self.fleet.default.serving
        return None if serving is None else serving.model

    def check_open(self) -> None:
        """Raise ``RequestError`` (503) unless requests are answered."""
        if not self.is_ready:
            raise self._unavailable()

    @contextlib.contextmanager
    def visited(self, visit: Holder, *, aside: bool = False) -> Iterator[None]:
        """The time in which a request is answered; raises ``RequestError`` if it cannot be.

        One ``aside`` is about an answer that is being generated, and always can be.
        """
        if not aside:
            self.check_open()
            self._check_full()
        self.visits.add(visit)
        try:
            yield
        finally:
            self.visits.discard(visit)
            self._arrived.discard(visit)

    def admit(self, visit: Holder) -> None:
        """Count a request, whose body is complete; raises ``RequestError`` (429)."""
        self._check_full()
        self._arrived.add(visit)

    def _check_full(self) -> None:
        if len(self._arrived) >= self.settings.max_batch + self.settings.max_queue:
            raise RequestError(
                f"the server is busy with {len(self._arrived)} requests; try again later",
                status=429,
                code="queue_full",
            )

    def retry_after(self) -> int:
        """Seconds after which a place may be free."""
        wait = self._typical * len(self._arrived) / self.settings.max_batch
        return max(1, min(_LONGEST_WAIT, math.ceil(wait)))

    def took(self, seconds: float) -> None:
        """Learn how long an answered request took."""
        self._typical += 0.1 * (seconds - self._typical)

    @contextlib.asynccontextmanager
    async def using(self, name: str | None) -> AsyncIterator[Serving]:
        """The model of a request without a body, which is loaded if necessary."""
        self.check_open()
        entry = self.fleet.catalogue.meant(name)
        try:
            async with asyncio.timeout(self.settings.queue_timeout or None):
                serving = await self.fleet.use(entry)
        except TimeoutError:
            raise queue_timeout(self.settings) from None
        try:
            yield serving
        finally:
            self.fleet.release(entry)

    def _unavailable(self) -> RequestError:
        if self._lost is not None:
            return as_request_error(self._lost)
        reason = {
            "loading": "the model is still being loaded; try again later",
            "stopping": "the server is stopping",
        }.get(self.status, "the engine failed and the server is stopping")
        return RequestError(reason, status=503, code=f"server_{self.status}")

    # ---- its life ----------------------------------------------------------------------------

    def start(self) -> None:
        """Load the default model, unless there are only such that requests have to name."""
        if self.settings.loads_at_once:
            self._starting = asyncio.create_task(self._begin())
        else:
            self._open()

    async def _begin(self) -> None:
        try:
            serving = await self.fleet.use(self.fleet.catalogue.default)
        except RequestError:
            if self.state is State.LOADING:
                self.state, self.failure = State.REFUSED, self.fleet.default.reason
                self._end(REFUSED)
            return
        model = serving.model
        if not self.settings.has_several:
            if model.max_context is not None:
                limit = model.max_context * _PER_TOKEN
                self.body_limit = min(max(limit, _LEAST_BODY), _MOST_BODY)
            if model.dialect.images is not None:
                self.body_limit = max(self.body_limit, _WITH_IMAGES)
        self._open()
        self.fleet.release(self.fleet.catalogue.default)

    def _open(self) -> None:
        if self.state is State.LOADING:
            self.state = State.READY
            self.became_ready.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Tell all who wait that an engine has failed, or a machine, and end soon after."""
        if self.state is State.FAILED:
            return
        self.state = State.FAILED
        if isinstance(error, MachineError):
            self._lost = error
            log(logging.ERROR, f"{error}; the server is stopping")
        else:
            log_failure("the engine failed; the server is stopping", error)
        self._interrupt_all()
        asyncio.get_running_loop().call_later(FAREWELL, self._end, FAILED)

    def stop(self) -> None:
        """Admit no more requests, and end when all are done or the grace period is over.

        A second call ends the server at once.
        """
        if self.is_stopping:
            log(logging.WARNING, "stopping at once")
            self._interrupt_all()
            return
        self.is_stopping = True
        self._stops_by = time.monotonic() + self.settings.shutdown_grace
        waiting = len(self.visits)
        log(logging.INFO, "stopping", requests=waiting, grace=self.settings.shutdown_grace)
        self._stopping = asyncio.create_task(self._wind_down())

    async def _wind_down(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.shutdown_grace):
                await self._all_gone()
        self._interrupt_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await self._all_gone()
        if self.state is not State.FAILED:
            self._end(STOPPED)

    async def _all_gone(self) -> None:
        while self.visits:
            await asyncio.sleep(0.02)

    def _interrupt_all(self) -> None:
        error = self._unavailable()
        for visit in list(self.visits):
            visit.interrupt(error)

    def _end(self, status: int) -> None:
        if not self.ended.done():
            self.ended.set_result(status)

    async def close(self) -> bool:
        """Stop all threads; returns whether they ended."""
        if self._starting is not None:
            self._starting.cancel()
        if self._lost is None:
            flush = max(LEAST_FLUSH, self._stops_by - time.monotonic())
            ended = await self.fleet.close(flush)
        else:
            ended = await self.fleet.close(0.0, patience=BRIEFLY)
        return self.workers.close() and ended


def queue_timeout(settings: Settings) -> RequestError:
    """The error of a request that has waited for too long."""
    return RequestError(
        f"the request has waited for more than {settings.queue_timeout:g} seconds; try again later",
        status=503,
        code="queue_timeout",
    )
