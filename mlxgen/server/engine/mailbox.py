"""What the engine has generated for one request and its handler has not taken yet.

Owns the handover from the engine's thread to the handler of a request. Must never
know HTTP, sequences or how chunks look as JSON. It belongs to the event loop's thread.

If a client does not read, its handler is stuck in a send and chunks pile up here. Beyond a limit
everything is dropped, and ``on_overflow`` is called with the error that ends the request.

Invariant: at most ``limit`` chunks wait (one with alternatives counts for more), and after a
failure only its error comes out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...engine import Chunk, Path, Progress, Usage
from ..errors import RequestError

LIMIT = 4096
PER_ALTERNATIVE = 4  # this many alternatives take as much memory as a chunk


class Delivery(NamedTuple):
    """News of one sequence: chunks, and at its end ``usage``.

    ``progress`` comes without chunks while its prompt is run, and with them until that is done, or
    always if the sequence is watched. ``ahead``: it waits, and so many others begin before it.

    Of the branches of a program: ``branch`` is the name of a new one, whose ``chunks`` are those up
    to its fork; ``facts`` is what is known of it besides its text; ``closes``: there will be no
    more branches.
    """

    place: int
    chunks: Sequence[Chunk]
    usage: Usage | None = None
    progress: Progress | None = None
    branch: Path | None = None
    facts: Mapping[str, Any] | None = None
    closes: bool = False
    ahead: int | None = None

    @property
    def says_something(self) -> bool:
        """Whether the reply has to know."""
        known = self.progress, self.branch, self.facts, self.ahead
        return bool(self.chunks) or any(each is not None for each in known)


class Mailbox:
    """The sequences of one request, by index, as far as they have come.

    ``watched``: chunks come with the progress of the sequences. ``grows``: there may be more of
    them, until a delivery closes it.
    """

    def __init__(
        self,
        sequences: int,
        *,
        on_overflow: Callable[[BaseException], None],
        limit: int = LIMIT,
        watched: bool = False,
        grows: bool = False,
    ) -> None:
        self.watched = watched
        self._grows = grows
        self._usages: list[Usage | None] = [None] * sequences
        self._waiting: list[Delivery] = []
        self._cost = 0
        self._limit = limit
        self.on_overflow = on_overflow
        self._error: BaseException | None = None
        self._accepted = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """Whether every sequence has ended."""
        return not self._grows and None not in self._usages

    @property
    def usages(self) -> list[Usage]:
        """The usage of each sequence; zero for those that have not ended."""
        return [usage or Usage() for usage in self._usages]

    def accept(self) -> None:
        """Note that the engine has taken the sequences, and will run them."""
        self._accepted = True
        self._wake()

    def put(self, delivery: Delivery) -> None:
        """Add news of a sequence, for whoever waits for it."""
        if self._error is not None:
            return
        if delivery.closes:
            self._grows = False
            self._wake()
            return
        self._usages += [None] * (delivery.place + 1 - len(self._usages))
        if delivery.says_something:
            self._waiting.append(delivery)
        for chunk in delivery.chunks if delivery.branch is None else ():  # others were counted
            self._cost += 1 + len(chunk.top) // PER_ALTERNATIVE
        if delivery.usage is not None:
            self._usages[delivery.place] = delivery.usage
        if self._cost > self._limit:
            error = RequestError(
                "the client does not read its answer", status=408, code="slow_reader"
            )
            self.fail(error)
            self.on_overflow(error)
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Make ``take`` raise from now on."""
        if self._error is None:
            self._error = error
            self._emptied()
        self._wake()

    async def accepted(self) -> None:
        """Wait until the engine has taken the sequences; raises what it says instead."""
        while not (self._accepted or self._waiting or self._error or self.finished):
            await self._news()
        if self._error is not None:
            raise self._error

    async def take(self) -> list[Delivery]:
        """Everything that waits, once there is something; an empty list at the end."""
        while not self._waiting and self._error is None and not self.finished:
            await self._news()
        if self._error is not None:
            raise self._error
        taken = self._waiting
        self._emptied()
        return taken

    def _emptied(self) -> None:
        self._waiting = []
        self._cost = 0

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
