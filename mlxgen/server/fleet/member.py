"""What is known of one model of the fleet: whether it is loaded, who uses it and who waits for it.

Must never know other models. It belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import enum
from typing import Any

from ...loading.memory import held_bytes
from ..engine.boot import Engine
from ..errors import RequestError
from .catalogue import Entry
from .serving import Serving


class Status(enum.Enum):
    """Whether a model is loaded."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"  # as soon as nobody uses it


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
        self.coming: asyncio.Future[Engine] | None = None  # while it is loaded
        self.gone: asyncio.Future[None]  # when its thread has ended
        self.serving: Serving | None = None
        self.weights = 0
        """The bytes of memory that are for its weights; 0 unless it has been given room."""
        self.held_before = 0
        """The bytes that MLX held when it was given room."""
        self.max_context = entry.max_context
        self.users = 0
        """How many requests it is used by."""
        self.used_at = 0.0  # by the loop's clock, the last time that it was
        self._waiters: list[asyncio.Future[Serving]] = []

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for it."""
        return bool(self._waiters)

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

    def join(self) -> asyncio.Future[Serving]:
        """Wait for it; whoever gets it uses it from then on."""
        waiter: asyncio.Future[Serving] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def leave(self, waiter: asyncio.Future[Serving]) -> None:
        """Wait no longer."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def admit(self) -> None:
        """Let all that wait use it. They do from now on, and not from when they hear of it: it must
        not look idle in between."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(self.take())

    def refuse(self) -> None:
        """Tell all that wait why it is not loaded."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
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
