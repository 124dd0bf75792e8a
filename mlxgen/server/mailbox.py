"""What the engine has generated for one request and its handler has not taken yet.

Owns the hand-over between the courier of the engine's thread and the handler of a request.
Must never know HTTP, rows or how chunks look as JSON. It belongs to the event loop's thread.

A handler whose client does not read stands still in a send, and chunks pile up here. So there
is a limit: behind it everything is dropped, and ``on_overflow`` is told to end the request.

Invariant: at most ``limit`` chunks wait (one with alternatives counts for more), and after a
failure nothing but its error comes out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..engine import Chunk, Progress, Usage
from .errors import RequestError

LIMIT = 4096
PER_ALTERNATIVE = 4  # alternatives that take as much memory as a chunk


class Delivery(NamedTuple):
    """Something that happened to one row: chunks, and at its end ``usage`` or an error.

    ``progress`` is for those who watch: with chunks, and without any while the prompt is read.
    """

    place: int
    chunks: Sequence[Chunk]
    usage: Usage | None = None
    error: Exception | None = None
    progress: Progress | None = None


class Mailbox:
    """The rows of one request, by index, as far as they came.

    ``watched``: somebody wants to know how far they are all the time.
    """

    __slots__ = (
        "_cost",
        "_error",
        "_limit",
        "_on_overflow",
        "_usages",
        "_waiter",
        "_waiting",
        "watched",
    )

    def __init__(
        self,
        rows: int,
        *,
        on_overflow: Callable[[], None],
        limit: int = LIMIT,
        watched: bool = False,
    ) -> None:
        self.watched = watched
        self._usages: list[Usage | None] = [None] * rows
        self._waiting: list[Delivery] = []
        self._cost = 0
        self._limit = limit
        self._on_overflow = on_overflow
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """Whether every row came to its end."""
        return None not in self._usages

    @property
    def usages(self) -> list[Usage]:
        """What the rows used; of those that have not ended, nothing."""
        return [usage or Usage() for usage in self._usages]

    def put(self, delivery: Delivery) -> None:
        """Take in what happened to a row."""
        if self._error is not None:
            return
        if delivery.error is not None:
            self.fail(delivery.error)
            return
        if delivery.chunks or delivery.progress is not None:
            self._waiting.append(delivery)
        for chunk in delivery.chunks:
            self._cost += 1 + len(chunk.top) // PER_ALTERNATIVE
        if delivery.usage is not None:
            self._usages[delivery.place] = delivery.usage
        if self._cost > self._limit:
            self.fail(RequestError("the client reads too slowly", status=408, code="slow_reader"))
            self._on_overflow()
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Have ``take`` raise, from now on."""
        if self._error is None:
            self._error = error
            self._waiting.clear()
            self._cost = 0
        self._wake()

    async def take(self) -> list[Delivery]:
        """Everything that waits, as soon as there is something; nothing at the end."""
        while not self._waiting and self._error is None and not self.finished:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._error is not None:
            raise self._error
        taken, self._waiting = self._waiting, []
        self._cost = 0
        return taken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
