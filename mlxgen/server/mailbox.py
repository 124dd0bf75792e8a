"""What the engine has generated for one request and its handler has not taken yet.

Owns the handover from the engine's thread to the handler of a request. Must never
know HTTP, rows or how chunks look as JSON. It belongs to the event loop's thread.

If a client does not read, its handler is stuck in a send and chunks pile up here. Beyond a limit
everything is dropped, and ``on_overflow`` is called to end the request.

Invariant: at most ``limit`` chunks wait (one with alternatives counts for more), and after a
failure only its error comes out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..engine import Chunk, Progress, Usage
from .errors import RequestError

LIMIT = 4096
PER_ALTERNATIVE = 4  # this many alternatives take as much memory as a chunk


class Delivery(NamedTuple):
    """News of one row: chunks, and at its end ``usage``.

    ``progress`` is for a watched row: with chunks, and without any while its prompt is run.
    """

    place: int
    chunks: Sequence[Chunk]
    usage: Usage | None = None
    progress: Progress | None = None


class Mailbox:
    """The rows of one request, by index, as far as they have come.

    ``watched``: deliveries report the progress of the rows.
    """

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
        """Whether every row has ended."""
        return None not in self._usages

    @property
    def usages(self) -> list[Usage]:
        """The usage of each row; zero for those that have not ended."""
        return [usage or Usage() for usage in self._usages]

    def put(self, delivery: Delivery) -> None:
        """Add news of a row."""
        if self._error is not None:
            return
        if delivery.chunks or delivery.progress is not None:
            self._waiting.append(delivery)
        for chunk in delivery.chunks:
            self._cost += 1 + len(chunk.top) // PER_ALTERNATIVE
        if delivery.usage is not None:
            self._usages[delivery.place] = delivery.usage
        if self._cost > self._limit:
            self.fail(
                RequestError(
                    "the client reads its answer too slowly", status=408, code="slow_reader"
                )
            )
            self._on_overflow()
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Make ``take`` raise from now on."""
        if self._error is None:
            self._error = error
            self._waiting.clear()
            self._cost = 0
        self._wake()

    async def take(self) -> list[Delivery]:
        """Everything that waits, once there is something; an empty list at the end."""
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
