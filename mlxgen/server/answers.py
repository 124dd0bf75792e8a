"""The answers being generated: the names of each, what its stream has sent, and which request sends
it.

Owns the names under which an answer can be steered, the numbers of its events, the newest events as
bytes, and how long a stream waits for its client. Must never know what an event says. It belongs to
the event loop.

When a client leaves its stream, the sequences leave the engine at once, and the prefix cache keeps
what it can of their KV. Only their history stays, on the host, from which they can resume: a stream
that waits costs a little memory and nothing else.

Invariant: an event is numbered and kept before it is sent, so none is lost with its connection; and
no client learns about another client's answer, not even whether it exists.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .ask import Ask
from .engine import Mailbox
from .errors import RequestError
from .reply import Aside, Delivery, Reply, Sent
from .serving import Serving
from .wire import ClientGone, encoded

WAITS = 60.0  # seconds that a stream waits for its client, or can be read again after its end
KEPT = 1 << 20  # bytes of a stream's newest events
MOST = 64  # streams without a client
MOST_BYTES = 8 << 20  # bytes of the events of all these

Interrupt: TypeAlias = Callable[[BaseException], None]


@dataclass(slots=True, eq=False)
class Answer:
    """An answer in progress; ``id`` is the reply's, and ``accepted`` is done once the engine has
    accepted or refused the sequences."""

    id: str
    ask: Ask
    reply: Reply
    serving: Serving
    box: Mailbox
    accepted: asyncio.Future[None] | None = None
    _begun: bool = False

    def opening(self) -> Sequence[Sent]:
        """The first events, on the first call only."""
        begun, self._begun = self._begun, True
        return [] if begun else self.reply.start()

    def events_of(self, news: Sequence[Delivery]) -> list[Sent]:
        """The events for ``news``, after the first events. These wait until it is known how much of
        the prompt must be run."""
        events = list[Sent]()
        for each in news:
            new = self.reply.take(each)
            if not self._begun:
                runs = each.progress is not None and not each.progress.prefilled
                if new or not (runs or each.ahead is not None):
                    events += self.opening()
            events += new
        return events

    def fold(self, events: Sequence[Sent]) -> None:
        """Add events to the whole answer."""
        for event in events:
            if isinstance(event, dict):
                self.reply.fold(event)


class Told:
    """What was sent of an answer; the newest events are kept as bytes.

    - ``owner``: the digest of the client's key, from the gate; ``id``: the reply's. ``end`` follows
      the last event. ``numbered``: events have numbers, so that a client can resume the stream.
    - ``names``: the names under which the answer can be steered: its id, and its requests' ids.
    - ``answer``: what is still to be sent, if anything; ``holder`` interrupts the request that
      sends it, and is ``None`` while there is no such request.
    - ``count``: the number of events so far; ``over``: the last event was sent.
    - ``size``: the bytes of the kept events.
    """

    def __init__(self, answer: Answer, owner: str, end: bytes) -> None:
        self.answer: Answer | None = answer
        self.owner, self.id, self.end = owner, answer.id, end
        self.names = {answer.id}
        self.numbered = answer.ask.stream and answer.ask.steered is None
        self.holder: Interrupt | None = None
        self.free = asyncio.Event()
        """Set while there is no holder."""
        self.timer: asyncio.TimerHandle | None = None
        self.count = 0
        self.over = False
        self.size = 0
        self._events: deque[bytes] = deque()  # the newest ones

    def encoded(self, events: Sequence[Sent], *, last: bool = False) -> bytes:
        """More events, as bytes of the stream; ``last``: the end of the stream follows them."""
        self.over = last
        parts = list[bytes]()
        for event in events:
            part = encoded(event)
            if self.numbered and not isinstance(event, Aside):
                self.count += 1
                part = b"id: %s-%d\n" % (self.id.encode(), self.count) + part
                self._events.append(part)
                self.size += len(part)
            parts.append(part)
        while self.size > KEPT and len(self._events) > 1:
            self.size -= len(self._events.popleft())
        if last:
            parts.append(self.end)
        return b"".join(parts)

    def after(self, number: int) -> bytes:
        """The bytes sent after the event of this number; raises ``RequestError`` if they are no
        longer kept, or if there was no such event."""
        first = self.count - len(self._events)
        if not first <= number <= self.count:
            raise gone(f"only its events from {first + 1} to {self.count} are kept")
        return b"".join([*self._events][number - first :] + [self.end] * self.over)


class Answers:
    """All answers that are being sent, and the streams that wait for their clients."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[str, str], Told] = OrderedDict()  # by owner and id

    def hold(self, told: Told, holder: Interrupt, name: str) -> None:
        """Let a request send an answer that has no holder. Meanwhile the answer can be steered
        under its id and under ``name``, which means the newest answer of that name."""
        if told.timer is not None:
            told.timer.cancel()
        told.holder = holder
        told.free.clear()
        told.names.add(name)
        self._told[told.owner, told.id] = told

    def leave(self, told: Told, *, waits: bool) -> None:
        """Take an answer from its holder. A stream that ``waits`` rests until its client returns;
        any other is cancelled, but the events already sent can be read again for a while."""
        told.holder = None
        told.free.set()
        answer = told.answer
        if answer is not None and (told.over or not waits or not told.count):
            told.answer = None
            if not answer.box.finished:
                answer.serving.engine.cancel(answer.box)
        elif answer is not None:
            answer.serving.engine.rest(answer.box)
        self._told.move_to_end((told.owner, told.id))
        told.timer = asyncio.get_running_loop().call_later(WAITS, self._drop, told)
        if not told.count:
            self._drop(told)
        left = [each for each in self._told.values() if each.holder is None]
        size = sum(each.size for each in left)
        for oldest in left:
            if len(left) <= MOST and size <= MOST_BYTES:
                break
            left, size = left[1:], size - oldest.size
            self._drop(oldest)

    def _drop(self, told: Told) -> None:
        assert told.timer is not None
        told.timer.cancel()
        del self._told[told.owner, told.id]
        if told.answer is not None:
            told.answer.serving.engine.cancel(told.answer.box)

    def find(self, owner: str, name: str) -> Answer:
        """The answer of this name; raises ``RequestError``: 409 if it has ended, 404 if unknown."""
        known = [each for each in self._told.values() if each.owner == owner and name in each.names]
        for told in reversed(known):
            if told.answer is not None and told.holder is not None:
                return told.answer
        if known:
            raise ended()
        raise RequestError(
            "there is no such answer; send the id that it has in its events, or its X-Request-Id",
            status=404,
            param="id",
            code="answer_not_found",
        )

    async def taken(self, owner: str, last: str) -> tuple[Told, int]:
        """The stream that an event's id belongs to, and the event's number. A request that still
        sends the stream is interrupted: its client has reconnected. Raises ``RequestError``."""
        id, _, number = last.rpartition("-")
        told = self._told.get((owner, id))
        if told is None or not (told.numbered and number.isdecimal() and number.isascii()):
            raise gone("there is none, or it was left for more than a minute")
        told.after(int(number))
        while told.holder is not None:
            told.holder(ClientGone())
            await told.free.wait()
        return told, int(number)


def ended() -> RequestError:
    """The error for an answer that can no longer be steered."""
    return RequestError("the answer has ended", status=409, param="id", code="answer_ended")


def gone(reason: str) -> RequestError:
    """The error for a stream that cannot be resumed."""
    return RequestError(
        f"the stream cannot be gone on with: {reason}; send the request without Last-Event-ID",
        status=404,
        param="Last-Event-ID",
        code="stream_not_found",
    )
