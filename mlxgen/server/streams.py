"""Streams that another connection can go on with: what each has told so far, and whose turn it is.

Owns the numbers of events, the newest ones as bytes, and how long a stream waits for its client.
Must never know what an event says. It belongs to the event loop.

A stream that is left has its sequences taken out of the engine at once, with their place in it, and
the prefix cache keeps what it may of their KV. What is left of them is on the host, so that they
can go on from their history. So one that waits costs nobody anything but a little memory.

Invariant: an event is numbered and kept before it is sent, so none is lost with its connection; and
nobody learns of a stream that is not their own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from .ask import Ask
from .engine.mailbox import Mailbox
from .engine.thread import EngineThread
from .errors import RequestError
from .reply import Aside, Reply, Sent
from .wire import ClientGone, encode_events

WAITS = 60.0  # seconds that a stream waits for its client, or can be read again after its end
KEPT = 1 << 20  # bytes of its newest events
MOST = 64  # streams without a client


class Holder(Protocol):
    """The connection that a stream is sent over."""

    def interrupt(self, error: BaseException) -> None:
        """Give it up."""


class Stream:
    """One stream, of the reply with this ``id``; ``end`` follows its last event."""

    def __init__(
        self,
        owner: str,
        id: str,
        *,
        ask: Ask,
        reply: Reply,
        mailbox: Mailbox,
        engine: EngineThread,
        end: bytes,
    ) -> None:
        self.owner, self.id = owner, id
        self.ask, self.reply, self.mailbox = ask, reply, mailbox
        self.engine, self.end = engine, end
        self.holder: Holder | None = None
        self.has_ended = False
        self.free = asyncio.Event()
        """Set while nobody sends it."""
        self.timer: asyncio.TimerHandle | None = None
        self.told = 0
        """How many events there were."""
        self._events: deque[bytes] = deque()  # the newest of them
        self._bytes = 0

    def encoded(self, events: Sequence[Sent]) -> bytes:
        """More events as bytes of the stream, each with its number."""
        parts = []
        for event in events:
            if isinstance(event, Aside):
                parts.append(encode_events([event]))
                continue
            self.told += 1
            part = b"id: %s-%d\n" % (self.id.encode(), self.told) + encode_events([event])
            parts.append(part)
            self._events.append(part)
            self._bytes += len(part)
        while self._bytes > KEPT and len(self._events) > 1:
            self._bytes -= len(self._events.popleft())
        return b"".join(parts)

    def after(self, number: int) -> bytes:
        """What was told after the event of this number; raises ``RequestError`` if that is not
        known any more, or the event was never sent."""
        first = self.told - len(self._events)
        if not first <= number <= self.told:
            raise gone(f"only its events from {first + 1} to {self.told} are kept")
        return b"".join(list(self._events)[number - first :])


class Streams:
    """All that are being sent, and those that wait for their clients."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str], Stream] = {}
        self._left: deque[Stream] = deque()

    def hold(self, stream: Stream, holder: Holder) -> None:
        """Have a stream that nobody sends sent over a connection."""
        if stream in self._left:
            self._left.remove(stream)
        if stream.timer is not None:
            stream.timer.cancel()
        stream.holder = holder
        stream.free.clear()
        self._all[stream.owner, stream.id] = stream

    def leave(self, stream: Stream) -> None:
        """Keep a stream for a client that may come back; one without events has nothing to name."""
        stream.holder = None
        stream.free.set()
        stream.timer = asyncio.get_running_loop().call_later(WAITS, self._drop, stream)
        self._left.append(stream)
        if not stream.told:
            self._drop(stream)
        elif len(self._left) > MOST:
            self._drop(self._left[0])

    def _drop(self, stream: Stream) -> None:
        assert stream.timer is not None
        stream.timer.cancel()
        self._left.remove(stream)
        del self._all[stream.owner, stream.id]
        stream.engine.cancel(stream.mailbox)

    async def taken(self, owner: str, last: str, holder: Holder) -> tuple[Stream, int]:
        """Hold the stream that the id of an event is of; with the number of the event.

        Who sends it until now is interrupted, as its client has another connection. Raises
        ``RequestError``.
        """
        id, _, number = last.rpartition("-")
        stream = self._all.get((owner, id))
        if stream is None or not (number.isdecimal() and number.isascii()):
            raise gone("there is none, or it was left for more than a minute")
        stream.after(int(number))
        while stream.holder is not None:
            stream.holder.interrupt(ClientGone())
            await stream.free.wait()
        self.hold(stream, holder)
        return stream, int(number)


def gone(reason: str) -> RequestError:
    """The error for a stream that cannot be gone on with."""
    return RequestError(
        f"the stream cannot be gone on with: {reason}; send the request without Last-Event-ID",
        status=404,
        param="Last-Event-ID",
        code="stream_not_found",
    )
