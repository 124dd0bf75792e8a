"""The server's state: what it serves, which requests it is answering, and whether it is open.

Owns the models, the threads that prepare requests, and the requests being answered. Must never know
HTTP beyond the errors that it raises. It belongs to the event loop.

Invariant: ``ended`` is set exactly once, with the exit status, when nothing is left to do; once the
server is stopping or its engine has failed, no request is admitted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

from ..errors import MachineError
from .answers import Answers, Interrupt
from .catalogue import Catalogue
from .engine import EngineBoot
from .errors import RequestError, as_request_error
from .fleet import Fleet
from .logs import log, log_failure
from .metrics import Metrics
from .registry import Registry
from .served_model import ServedModel, boot
from .serving import Workers
from .settings import Settings

STOPPED, FAILED, REFUSED = 0, 1, 2  # exit statuses
LEAST_FLUSH = 2.0  # seconds at least to write prefixes to disk at the end, even after the grace
FAREWELL = 2.0  # seconds for which a failure is reported before the process ends
BRIEFLY = 0.5  # seconds to wait for a thread that may wait for a lost machine for ever
_BODY, _WITH_IMAGES = 8 << 20, 32 << 20  # bytes of a body, and of one that may have images

Status: TypeAlias = Literal["loading", "ready", "stopping", "refused", "failed"]
"""The server's state: ``refused`` means that its model could not be loaded, and ``failed`` that an
engine or a machine failed."""
_WHY_CLOSED = {
    "loading": "the model is still being loaded; try again later",
    "stopping": "the server is stopping",
}


class Service:
    """Everything that requests share; ``only`` loads the only model in its engine's thread.

    ``device``: the bytes of the device; None: as MLX reports.
    """

    def __init__(
        self,
        settings: Settings,
        only: EngineBoot | None = None,
        *,
        catalogue: Catalogue | None = None,
        device: int | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.workers = Workers()
        self.registry = Registry.of(settings)
        self.unknown_fields: set[str] | None = None if settings.strict_fields else set()
        """The unknown fields already in the log; ``None``: unknown fields are refused."""
        self.answers = Answers()
        self._visits: set[Interrupt] = set()  # the requests being answered
        self._arrived: set[Interrupt] = set()  # those with bodies: slow senders take no place
        catalogue = catalogue or Catalogue.of(settings)
        fits = len(catalogue.entries) > 1  # the fleet makes sure of it
        how = replace(settings, ignore_memory_limit=True) if fits else settings
        own = partial(boot, how, registry=self.registry)
        self.fleet = Fleet(
            catalogue,
            settings,
            boot=own if only is None else lambda entry, base: only(),
            failed=self.fail,
            device=device,
        )
        self.metrics = Metrics(
            stats=self.fleet.stats,
            is_ready=lambda: self.status == "ready",
            loaded=self.fleet.loaded,
            slow=self.registry.slow.counts,
        )
        self.metrics.in_progress.set_function(lambda: len(self._visits))
        self.status: Status = "loading"
        self.body_limit = _WITH_IMAGES if settings.has_several else _BODY
        self.ended: asyncio.Future[int] = loop.create_future()
        self.became_ready: asyncio.Future[None] = loop.create_future()
        self.failure: str | None = None
        """Why the server could not start."""
        self._tasks: list[asyncio.Task[None]] = []
        self._stops_by = -math.inf
        self._lost: MachineError | None = None  # one of several machines

    # ---- for requests ------------------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        """Whether the server admits no more requests, and finishes those it has."""
        return self.status == "stopping"

    @property
    def stuck(self) -> str | None:
        """Why requests are not answered, if ``status`` does not say so."""
        if self._lost is not None:
            return str(self._lost)
        stalled = [each.engine.stalled for each in self.fleet.serving if each.engine.is_stuck]
        return f"the engine has taken no step for {stalled[0]:.0f} s" if stalled else None

    @property
    def is_alive(self) -> bool:
        """Whether all engines work: none has failed or hangs."""
        return self.status not in ("refused", "failed") and self.stuck is None

    @property
    def loaded(self) -> ServedModel | None:
        """The default model, if it is loaded."""
        serving = self.fleet.default.serving
        return None if serving is None else serving.model

    def check_open(self) -> None:
        """Raise ``RequestError`` (503) unless requests are answered."""
        if self.status != "ready":
            raise self._closed()

    def _closed(self) -> RequestError:
        if self._lost is not None:
            return as_request_error(self._lost)
        reason = _WHY_CLOSED.get(self.status, "the engine failed and the server is stopping")
        return RequestError(reason, status=503, code=f"server_{self.status}")

    def enter(self, visit: Interrupt, *, aside: bool) -> None:
        """Count a request until it leaves; raises ``RequestError`` if the server is not ready.

        ``aside``: the request is about a running answer, and is always admitted.
        """
        if self.status != "ready" and not aside:
            raise self._closed()
        self._visits.add(visit)

    def admit(self, visit: Interrupt) -> None:
        """Give a place to a request whose body is complete; raises ``RequestError`` (429) if no
        more may wait."""
        if len(self._arrived) >= self.settings.max_batch + self.settings.max_queue:
            reason = f"the server is busy with {len(self._arrived)} requests; try again later"
            raise RequestError(reason, status=429, code="queue_full")
        self._arrived.add(visit)

    def leave(self, visit: Interrupt) -> None:
        """End a request."""
        self._visits.discard(visit)
        self._arrived.discard(visit)

    # ---- from start to end -------------------------------------------------------------------

    def start(self) -> None:
        """Load the default model, unless models are only loaded when requests name them."""
        if self.settings.loads_at_once:
            self._tasks.append(asyncio.create_task(self._begin()))
        else:
            self._open()

    async def _begin(self) -> None:
        entry = self.fleet.catalogue.default
        try:
            serving = await self.fleet.use(entry)
        except RequestError:
            if self.status == "loading":
                self.status, self.failure = "refused", self.fleet.default.reason
                self._end(REFUSED)
            return
        if serving.model.dialect.images is not None:
            self.body_limit = _WITH_IMAGES
        self._open()
        self.fleet.release(entry)

    def _open(self) -> None:
        if self.status == "loading":
            self.status = "ready"
            self.became_ready.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Interrupt all requests because an engine or a machine has failed, and end soon after."""
        if self.status == "failed":
            return
        self.status = "failed"
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
        if self.status not in ("loading", "ready"):
            log(logging.WARNING, "stopping at once")
            self._interrupt_all()
            return
        self.status = "stopping"
        grace = self.settings.shutdown_grace
        self._stops_by = time.monotonic() + grace
        log(logging.INFO, "stopping", requests=len(self._visits), grace=grace)
        self._tasks.append(asyncio.create_task(self._wind_down(grace)))

    async def _wind_down(self, grace: float) -> None:
        for patience in (grace, 5.0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    while self._visits:
                        await asyncio.sleep(0.02)
            self._interrupt_all()
        if self.status != "failed":
            self._end(STOPPED)

    def _interrupt_all(self) -> None:
        error = self._closed()
        for interrupt in list(self._visits):
            interrupt(error)

    def _end(self, status: int) -> None:
        if not self.ended.done():
            self.ended.set_result(status)

    async def close(self) -> bool:
        """Stop all threads; return True if they ended."""
        for task in self._tasks:
            task.cancel()
        if self._lost is None:
            flush = max(LEAST_FLUSH, self._stops_by - time.monotonic())
            ended = await self.fleet.close(flush)
        else:
            ended = await self.fleet.close(0.0, patience=BRIEFLY)
        return self.workers.close() and ended
