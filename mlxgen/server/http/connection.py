"""One TCP connection: how long its client may take for each part of a request.

Owns what ASGI does not cover: the time that a client has, hanging up on it, writing to it without
waiting, and the answer to what is not HTTP. Must never know what is served. uvicorn only limits the
time between two requests, and stops counting after one byte.

Invariant: a connection always waits for one thing, which is derived from the states of both sides
and never set. While it is the client's turn there is a deadline, counted from the beginning of that
part of the request; further bytes do not move it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import RequestError
from .body import READING
from .responses import to_json
from .room import Phase, Room

LINK = "mlxgen.link"
"""The key in a request's scope for the ``Link`` to its client."""


class Link(Protocol):
    """A connection, as far as ASGI does not cover it."""

    @property
    def flows(self) -> bool:
        """Whether an answer in chunks has begun, and its client is not behind."""

    def push(self, data: bytes) -> None:
        """Write more of that answer; only while it flows."""

    def abort(self) -> None:
        """Hang up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds that a client has, and the bytes per second that it must at least read."""

    idle: float = 5.0  # until the first byte of another request
    head: float = 30.0  # until the end of the headers
    body: float = READING + 5.0  # until the end of the body; its reader times out first
    taking: float = 30.0  # between two checks of how much was read
    least_taken: float = 1024.0

    def of(self, phase: Phase) -> float | None:
        """The seconds for a phase; ``None`` if it is the server's turn."""
        return {
            Phase.IDLE: self.idle,
            Phase.HEAD: self.head,
            Phase.BODY: self.body,
            Phase.TAKING: self.taking,
            Phase.ANSWER: None,
        }[phase]


class Connection(H11Protocol):
    """uvicorn's connection, with ``scope[LINK]``, deadlines, and a place in the ``room``."""

    def __init__(self, *, room: Room, patience: Patience, **options: Any) -> None:
        super().__init__(**options)
        self._room = room
        self._patience = patience
        self._waits: tuple[Phase, object] | None = None  # the phase, of which request
        self._deadline: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes, at the last check
        self._lost = False
        room.put(self, Phase.HEAD)
        inner: Any = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope[LINK] = self
            try:
                await inner(scope, receive, send)
            finally:
                self.loop.call_soon(self._look)  # after uvicorn has seen the answer

        self.app = app

    # ---- the link ----------------------------------------------------------------------------

    @property
    def flows(self) -> bool:
        """As ``Link.flows``; without HTTP/1.1 there are no chunks."""
        conn = self.conn
        begun = conn.our_state is h11.SEND_BODY and (conn.their_http_version or b"") >= b"1.1"
        return begun and not self.flow.write_paused

    def push(self, data: bytes) -> None:
        """As ``Link.push``: a chunk, beside h11's writer, which keeps no state between chunks."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def abort(self) -> None:
        """As ``Link.abort``."""
        self.transport.abort()

    # ---- the event loop and uvicorn ----------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._lost:
            transport.abort()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._room.remove(self)
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def eof_received(self) -> None:
        super().eof_received()
        self.loop.call_soon(self._look)  # the transport closes itself after this

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, unless an answer has begun; its handler can stop."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        error = RequestError("this is not a valid HTTP/1.1 request", code="invalid_http")
        body = to_json(error.body())
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        whole = (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in whole))
        self.transport.close()

    # ---- whose turn it is --------------------------------------------------------------------

    def _phase(self) -> Phase:
        if self.transport.is_closing() or self.flow.write_paused:
            return Phase.TAKING
        theirs = self.conn.their_state
        if theirs is h11.SEND_BODY:
            return Phase.BODY
        if theirs is not h11.IDLE:
            return Phase.ANSWER
        began = self.cycle is None or self.conn.trailing_data[0]
        return Phase.HEAD if began else Phase.IDLE

    def _look(self) -> None:
        """Restart the deadline if the connection waits for something else now."""
        if self._lost:
            return
        phase = self._phase()
        waits = (phase, self.cycle)
        if waits == self._waits:
            return
        self._waits = waits
        self._room.put(self, phase)
        self._arm()

    def _arm(self) -> None:
        assert self._waits is not None
        self._disarm()
        self._unsent = self.transport.get_write_buffer_size()
        seconds = self._patience.of(self._waits[0])
        if seconds is not None:
            self._deadline = self.loop.call_later(seconds, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        assert self._waits is not None
        if self._waits[0] is Phase.TAKING:
            taken = self._unsent - self.transport.get_write_buffer_size()
            if taken >= self._patience.taking * self._patience.least_taken:
                self._arm()
                return
        self.give_up()

    def give_up(self) -> None:
        """Close it; pending output is only sent if the connection is idle."""
        if self._waits is None:  # it is being set up
            self._lost = True
        elif self._waits[0] is Phase.IDLE:
            self.timeout_keep_alive_handler()
            self._look()
        else:
            self.transport.abort()


class _NoLink:
    """A ``Link`` under other servers: ASGI has to do."""

    flows = False

    def push(self, data: bytes) -> None: ...
    def abort(self) -> None: ...


def link_of(scope: Scope) -> Link:
    """The link to a request's client; under other servers it never flows, and cannot hang up."""
    link: Link = scope.get(LINK, _NoLink())
    return link
