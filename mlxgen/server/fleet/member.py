"""What is known of one model of the fleet: whether it is loaded, who uses it and who waits for it.

Must never know other models but its base. It belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import Any

from ...language_model import LanguageModel
from ...loading.memory import held_bytes
from ..engine.boot import Engine
from ..engine.thread import EngineThread
from ..errors import RequestError
from ..jobs import Preparation, Workers
from ..remote_images import RemoteImages
from ..served_model import ServedModel
from ..settings import Settings
from .catalogue import Entry


class Status(enum.Enum):
    """Whether a model is loaded."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"  # as soon as nobody uses it


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """A loaded model, and everything through which requests use it."""

    engine: EngineThread
    model: ServedModel
    lm: LanguageModel
    preparation: Preparation

    @classmethod
    def of(
        cls, thread: EngineThread, engine: Engine, workers: Workers, settings: Settings
    ) -> Serving:
        """What was loaded in a thread."""
        lm, model = engine
        fetches = settings.allow_remote_images and model.dialect.images is not None
        remote = RemoteImages() if fetches else None
        ready = Preparation(workers, lm, model, max_sequences=settings.max_queue, remote=remote)
        return cls(thread, model, lm, ready)


class Member:
    """A model of the fleet; ``base`` is the one whose weights it needs, if there is one."""

    def __init__(self, entry: Entry, base: Member | None = None) -> None:
        self.entry = entry
        self.base = base
        self.sharers: set[Member] = set()
        """Those that use it because they share its weights."""
        self.status = Status.UNLOADED
        self.reason: str | None = None
        """Why it could not be loaded the last time."""
        self.failed_at = 0.0  # by the loop's clock
        self.serving: Serving | None = None
        self.weights = 0
        """The bytes of memory that are for its weights; 0 unless it has been given room."""
        self.held_before = 0
        """The bytes that MLX held when it was given room."""
        self.max_context = entry.max_context
        self.users = 0
        """How many requests it is used by."""
        self.used_at = 0.0  # by the loop's clock, the last time that it was
        self.waiters: list[asyncio.Future[Serving]] = []
        """Those who wait until it is loaded."""

    @property
    def is_idle(self) -> bool:
        """Whether it is loaded for nobody."""
        return self.status is Status.LOADED and not self.users

    @property
    def generates(self) -> bool:
        """Whether requests use it, or one that shares its weights."""
        return self.users > len(self.sharers) or any(each.users for each in self.sharers)

    @property
    def last_used(self) -> float:
        """When requests used it, or one that shares its weights, by the loop's clock."""
        return max(each.used_at for each in (self, *self.sharers))

    @property
    def failure(self) -> RequestError:
        """The error of a request for it while it cannot be loaded."""
        return RequestError(
            f"{self.entry.name} is not loaded: {self.reason}",
            status=503,
            code="model_not_loaded",
        )

    def take(self) -> Serving:
        """Use it, until ``users`` is lowered again."""
        assert self.serving is not None
        self.users += 1
        return self.serving

    def answer(self) -> None:
        """Let all that wait use it, or tell them why it is not loaded. They use it from now on, and
        not from when they hear of it: it must not look idle in between."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.done():
                continue
            if self.status is Status.LOADED:
                waiter.set_result(self.take())
            else:
                waiter.set_exception(self.failure)
                waiter.exception()  # whoever waited may have left meanwhile

    def told(self) -> dict[str, Any]:
        """Its state, with llama.cpp's names."""
        told: dict[str, Any] = {"value": self.status.value}
        if self.status is Status.LOADING and self.weights:
            share = (held_bytes() - self.held_before) / self.weights
            told["progress"] = round(max(0.0, min(share, 1.0)), 2)
        if self.reason is not None:
            told |= {"failed": True, "reason": self.reason}
        return told
