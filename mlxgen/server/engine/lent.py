"""The engine's scheduler as a program's thread has it: for its own sequences.

Every call is carried out in the engine's thread, between two steps. Must never know what else runs
there. Belongs to the program's thread, but for ``since`` and ``made``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ...engine import Event, FinishReason, Handle, Request, Scheduler, Stats
from ...errors import StateError
from ...tokens import Token
from .guest import Guest, Left, Raised, Wish, Work


class Lent:
    """A control's ``Sequences``. At most ``most`` are made in all.

    ``since``: when the program began to think; ``None`` while it waits for the engine.
    After its request has ended every call raises ``Left``, apart from those that end sequences.
    """

    def __init__(self, guest: Guest, put: Callable[[Wish], None], *, most: int) -> None:
        self.guest = guest
        self._put = put
        self._most = most
        self._made = 0
        self._handles: list[Handle] = []
        self._waiting: set[Handle] = set()
        self._has_left = False
        self.since: float | None = time.monotonic()

    @property
    def busy(self) -> bool:
        if self.guest.has_left:  # its sequences were ended, and not by the program
            self._has_left = True
            raise Left
        self._handles = [handle for handle in self._handles if not handle.closed]
        return any(handle not in self._waiting for handle in self._handles)

    def submit(self, request: Request) -> Handle:
        def work(guest: Guest, scheduler: Scheduler) -> Handle:
            handle = scheduler.submit(request)
            guest.handles.append(handle)
            return handle

        handle: Handle = self._ask(work, makes=1)
        self._handles.append(handle)
        return handle

    def fork(self, handle: Handle, n: int = 1) -> list[Handle]:
        def work(guest: Guest, scheduler: Scheduler) -> list[Handle]:
            twins = scheduler.fork(handle, n)
            guest.handles += twins
            return twins

        twins: list[Handle] = self._ask(work, makes=n, forks=handle)
        self._handles += twins
        return twins

    def step(self) -> list[Event]:
        events: list[Event] = self._ask(None)
        return events

    def change(self, handle: Handle, back: int, tokens: Sequence[Token]) -> list[Event]:
        events: list[Event] = self._ask(
            lambda guest, scheduler: scheduler.change(handle, back, tokens)
        )
        return events

    def finish(self, handle: Handle, reason: FinishReason) -> list[Event]:
        if self._has_left:
            return [Event(handle, handle.take())]
        events: list[Event] = self._ask(lambda guest, scheduler: scheduler.finish(handle, reason))
        return events

    def park(self, handle: Handle) -> None:
        def work(guest: Guest, scheduler: Scheduler) -> None:
            scheduler.park(handle)
            guest.waiting.add(handle)

        self._ask(work)
        self._waiting.add(handle)

    def resume(self, handle: Handle) -> None:
        def work(guest: Guest, scheduler: Scheduler) -> None:
            guest.waiting.discard(handle)
            scheduler.resume(handle)

        self._ask(work)
        self._waiting.discard(handle)

    def cancel(self, handle: Handle) -> None:
        if not self._has_left and not handle.closed:
            self._ask(lambda guest, scheduler: scheduler.cancel(handle))

    def close(self) -> None:
        for handle in self._handles:
            self.cancel(handle)

    def stats(self) -> Stats:
        stats: Stats = self._ask(lambda guest, scheduler: scheduler.stats())
        return stats

    def _ask(self, work: Work | None, *, makes: int = 0, forks: Handle | None = None) -> Any:
        if self._has_left:
            raise Left
        if self._made + makes > self._most:
            raise StateError(
                f"a request may have {self._most} branches here, and this would be one of "
                f"{self._made + makes}; fork less"
            )
        self.since = None
        self._put(Wish(self.guest, work, makes, forks))
        answer = self.guest.answers.get()
        self.since = time.monotonic()
        if isinstance(answer, Raised):
            self._has_left = isinstance(answer.error, Left)
            raise answer.error
        self._made += makes
        return answer
