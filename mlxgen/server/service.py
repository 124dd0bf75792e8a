"""The server's state: what it serves, which requests it is answering, and whether it is open.

Owns the engine's thread and its pulse, the guard, the lanes of preparation and the door. Must never
know HTTP beyond the errors that it raises. It belongs to the event loop.

Invariant: ``ended`` is set exactly once, with the exit status, when nothing is left to do; once the
server is stopping or its engine has failed, no request is admitted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from ..errors import MlxgenError
from .engine.boot import Engine, EngineBoot
from .engine.pulse import Pulse
from .engine.thread import EngineThread, State
from .errors import RequestError
from .guard.guard import Guard
from .http.admission import Admission
from .jobs import Preparation
from .logs import log, log_failure
from .metrics import Metrics
from .programs.running import Programs
from .remote_images import RemoteImages
from .served_model import ServedModel
from .settings import Settings

STOPPED, FAILED, REFUSED = 0, 1, 2  # exit statuses
FAREWELL = 2.0  # seconds for which a failed engine is reported before the process ends
_LEAST_BODY, _MOST_BODY = 1 << 20, 16 << 20
_WITH_IMAGES = 32 << 20  # bytes of a body that may have images in it
_PER_TOKEN = 64  # bytes of a body for each token of the context; few tokens take more, even escaped


class Service:
    """Everything that requests share; ``boot`` loads the engine in its thread.

    ``most`` limits the requests answered at a time, in addition to the settings.
    """

    def __init__(self, settings: Settings, boot: EngineBoot, *, most: int | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.engine = EngineThread(boot, self._on_engine, loop=loop)
        self.pulse = Pulse(lambda: self.engine.beats, settings.stall_timeout)
        places = settings.max_batch + settings.max_queue
        self.admission = Admission(
            max_batch=settings.max_batch, most=places if most is None else min(places, most)
        )
        self.metrics = Metrics(stats=lambda: self.engine.stats, is_ready=lambda: self.is_ready)
        self.metrics.in_progress.set_function(lambda: len(self.admission.visits))
        self.state = State.LOADING
        self.is_stopping = False
        self.body_limit = _LEAST_BODY
        self.ended: asyncio.Future[int] = loop.create_future()
        self.became_ready: asyncio.Future[None] = loop.create_future()
        self.failure: BaseException | None = None
        self.loaded: ServedModel | None = None
        """What is served, once it is loaded."""
        self._guard: Guard  # from then on, too
        self.preparation: Preparation
        """The lanes in which requests become sequences, once there is a model."""
        self.programs: Programs
        """What the operator's programs run in, from then on."""
        self._stopping: asyncio.Task[None] | None = None

    # ---- what requests ask -------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered."""
        return self.state is State.READY and not self.is_stopping

    @property
    def status(self) -> str:
        """The server's state in one word."""
        fails = self.state in (State.FAILED, State.REFUSED)
        return "stopping" if self.is_stopping and not fails else self.state.value

    @property
    def stuck(self) -> str | None:
        """Why requests are admitted and yet not parsed or answered, if so."""
        if self.pulse.is_missing:
            return f"the engine has taken no step for {self.pulse.seconds:.0f} s"
        return None if self.loaded is None else self.preparation.stuck

    @property
    def model(self) -> ServedModel:
        """What is served; raises ``RequestError`` (503) unless requests are answered."""
        self.check_open()
        assert self.loaded is not None
        return self.loaded

    def check_open(self) -> None:
        """Raise ``RequestError`` (503) unless requests are answered."""
        if not self.is_ready:
            raise self._unavailable()

    def _unavailable(self) -> RequestError:
        reason = {
            "loading": "the model is still being loaded; try again later",
            "stopping": "the server is stopping",
        }.get(self.status, "the engine failed and the server is stopping")
        return RequestError(reason, status=503, code=f"server_{self.status}")

    # ---- its life ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start loading."""
        self.engine.start()
        self.pulse.start()

    def _on_engine(self, state: State, news: Engine | BaseException | None) -> None:
        self.state = state
        if isinstance(news, Engine):
            self._open(news)
        elif state is State.REFUSED:
            self.failure = news
            self._end(REFUSED)
        elif state is State.FAILED and news is not None:
            log_failure("the engine failed; the server is stopping", news)
            self._interrupt_all()
            asyncio.get_running_loop().call_later(FAREWELL, self._end, FAILED)

    def _open(self, engine: Engine) -> None:
        log(logging.INFO, f"memory: {engine.lm.memory}")
        model = engine.model
        if model.max_context is not None:
            limit = model.max_context * _PER_TOKEN
            self.body_limit = min(max(limit, _LEAST_BODY), _MOST_BODY)
        if model.dialect.images is not None:
            self.body_limit = max(self.body_limit, _WITH_IMAGES)
        self._guard = Guard(engine.facts, costly=self.metrics.costly_grammars.inc)
        self._guard.start()
        fetches = self.settings.allow_remote_images and model.dialect.images is not None
        self.preparation = Preparation(
            engine.lm.prepare_all,
            model,
            self._guard,
            max_sequences=self.settings.max_queue,
            remote=RemoteImages() if fetches else None,
        )
        self.programs = Programs(
            self.engine, timeout=self.settings.program_timeout, most=self.settings.max_queue
        )
        self.loaded = model
        self.became_ready.set_result(None)

    def stop(self) -> None:
        """Admit no more requests, and end when all are done or the grace period is over.

        A second call ends the server at once.
        """
        if self.is_stopping:
            log(logging.WARNING, "stopping at once")
            self._interrupt_all()
            return
        self.is_stopping = True
        waiting = len(self.admission.visits)
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
        while self.admission.visits:
            await asyncio.sleep(0.02)

    def _interrupt_all(self) -> None:
        error = self._unavailable()
        for visit in list(self.admission.visits):
            visit.interrupt(error)

    def _end(self, status: int) -> None:
        if not self.ended.done():
            self.ended.set_result(status)

    async def close(self) -> bool:
        """Stop the engine's thread, the guard and the lanes; returns whether all of them ended."""
        self.pulse.close()
        self.engine.stop()
        prepared = True
        if self.loaded is not None:
            await self._guard.close()
            prepared = await self.preparation.close()
        return await asyncio.to_thread(self.engine.join, 10.0) and prepared


def why(error: BaseException) -> str:
    """Why the server cannot start, in one line."""
    if isinstance(error, MlxgenError):
        return " ".join(str(error).split())
    return f"the model cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())}"
