"""uvicorn's connection, for clients that are slow on purpose.

uvicorn limits the time between two requests, and stops counting after one byte. Here a client is
hung up on that has not sent the whole head of a request in ``sending`` seconds, or has read nothing
of an answer for ``reading`` seconds. The time for a body is limited by who reads it.
"""

from __future__ import annotations

import asyncio

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """A class for uvicorn's option ``http``."""

    sending = 10.0
    reading = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._answering = 0  # requests
        self._unread = 0  # bytes, when the client's time began
        self._timer: asyncio.TimerHandle | None = None
        inner = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            self._answering += 1
            self._look()
            try:
                await inner(scope, receive, send)
            finally:
                self._answering -= 1
                self._look()

        self.app = app
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._look()

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # what is not HTTP, while an answer is being sent
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def _look(self) -> None:
        """Begin to count the client's time if it is its turn, and stop if it is not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        is_theirs = not self._answering or self.flow.write_paused
        if is_theirs and self in self.connections:
            self._unread = self.transport.get_write_buffer_size()
            seconds = self.reading if self._unread else self.sending
            self._timer = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread:
            self._look()  # it reads, if slowly
        else:
            self.transport.abort()
