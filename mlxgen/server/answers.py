"""The answers that are being generated: how each is named, what its stream has told, whose turn it
is.

Owns the names under which an answer can be steered, the numbers of its events, the newest ones as
bytes, and how long a stream waits for its client. Must never know what an event says. It belongs to
the event loop.

A stream that is left has its sequences taken out of the engine at once, with their place in it, and
the prefix cache keeps what it may of their KV. What is left of them is on the host, so that they
can go on from their history. So one that waits costs nobody anything but a little memory.

Invariant: an event is numbered and kept before it is sent, so none is lost with its connection; and
nobody learns of an answer that is not their own, not even whether there is one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .ask import Ask
from .engine.mailbox import Mailbox
from .errors import RequestError
from .fleet.member import Serving
from .reply import Aside, Reply, Sent
from .wire import ClientGone, encode_events

WAITS = 60.0  # seconds that a stream waits for its client, or can be read again after its end
KEPT = 1 << 20  # bytes of its newest events
MOST = 64  # streams without a client
KNOWN = 4096  # names of answers that have ended, which are told from those that never were


class Holder(Protocol):
    """The request that an answer is for."""

    def interrupt(self, error: BaseException) -> None:
        """Give it up."""


class Said:
    """What has been told of an answer, the newest of it as bytes; ``id`` is that of the reply, and
    ``end`` follows its last event. Of a stream that can be gone on with, events have numbers."""

    def __init__(self, owner: str, id: str, end: bytes, *, numbered: bool) -> None:
        self.owner, self.id, self.end, self.numbered = owner, id, end, numbered
        self.holder: Holder | None = None
        self.free = asyncio.Event()
        """Set while it has no holder."""
        self.rests: Answer | None = None
        """What is left to tell, while its client is away."""
        self.timer: asyncio.TimerHandle | None = None
        self.told = 0
        """How many events there were."""
        self._events: deque[bytes] = deque()  # the newest of them
        self._bytes = 0

    def encoded(self, events: Sequence[Sent]) -> bytes:
        """More events as bytes of the stream."""
        if not self.numbered:
            return encode_events(events)
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


class Answer(NamedTuple):
    """What is generated for a request."""

    ask: Ask
    reply: Reply
    mailbox: Mailbox
    serving: Serving
    said: Said


class Answers:
    """All that have a holder, and the streams that wait for their clients; an owner is as in
    ``owner_of``."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], Answer] = {}
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._held: dict[tuple[str, str], Said] = {}
        self._left: OrderedDict[tuple[str, str], Said] = OrderedDict()

    def hold(self, said: Said, holder: Holder) -> None:
        """Let a request tell more of an answer that has no holder."""
        if said.timer is not None:
            said.timer.cancel()
        key = said.owner, said.id
        self._left.pop(key, None)
        self._held[key] = said
        said.holder = holder
        said.free.clear()

    def know(self, answer: Answer, name: str) -> None:
        """Let an answer be steered under its id and a name, until it is left; of several with the
        same name, the newest is meant."""
        for each in (answer.said.id, name):
            self._running[answer.said.owner, each] = answer

    def leave(self, said: Said, rests: Answer | None) -> None:
        """Take an answer from its holder. A stream is kept for a client that may come back, with
        what ``rests`` of the answer; one without events has nothing to name."""
        key = said.owner, said.id
        del self._held[key]
        for each in [name for name, known in self._running.items() if known.said is said]:
            del self._running[each]
            self._ended[each] = None
        while len(self._ended) > KNOWN:
            self._ended.popitem(last=False)
        said.holder, said.rests = None, rests
        said.free.set()
        self._left[key] = said
        said.timer = asyncio.get_running_loop().call_later(WAITS, self._drop, said)
        if not said.told:
            self._drop(said)
        elif len(self._left) > MOST:
            self._drop(next(iter(self._left.values())))

    def _drop(self, said: Said) -> None:
        assert said.timer is not None
        said.timer.cancel()
        del self._left[said.owner, said.id]
        if said.rests is not None:
            said.rests.serving.engine.cancel(said.rests.mailbox)

    def find(self, owner: str, name: str) -> Answer:
        """The answer of this name; raises ``RequestError``: 409 if it has ended, or else 404."""
        found = self._running.get((owner, name))
        if found is not None:
            return found
        if (owner, name) in self._ended:
            raise ended()
        raise RequestError(
            "there is no such answer; send the id that it has in its events, or its X-Request-Id",
            status=404,
            param="id",
            code="answer_not_found",
        )

    async def taken(self, owner: str, last: str, holder: Holder) -> tuple[Said, bytes]:
        """Hold the stream that the id of an event is of; with what was told after that event.

        Who tells it until now is interrupted, as its client has another connection. Raises
        ``RequestError``.
        """
        id, _, number = last.rpartition("-")
        key = owner, id
        said = self._left.get(key) or self._held.get(key)
        if said is None or not (number.isdecimal() and number.isascii()):
            raise gone("there is none, or it was left for more than a minute")
        said.after(int(number))
        while said.holder is not None:
            said.holder.interrupt(ClientGone())
            await said.free.wait()
        self.hold(said, holder)
        return said, said.after(int(number))


def ended() -> RequestError:
    """The error for an answer that cannot be steered any more."""
    return RequestError("the answer has ended", status=409, param="id", code="answer_ended")


def gone(reason: str) -> RequestError:
    """The error for a stream that cannot be gone on with."""
    return RequestError(
        f"the stream cannot be gone on with: {reason}; send the request without Last-Event-ID",
        status=404,
        param="Last-Event-ID",
        code="stream_not_found",
    )
