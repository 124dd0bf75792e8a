"""One TCP connection: what uvicorn's leaves open.

Owns what ASGI has no words for: hanging up at once on a client that does not read, and on one
that connects and sends no request. Must never know what is served. Invariant: a connection that
waits for its first request, or for its client to take the last answer, ends after ``HEADERS``
seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS = 30.0  # seconds
ABORT = "mlxgen.abort"
"""Where a request's scope has the function that hangs up."""


class Connection(H11Protocol):
    """uvicorn's connection, with ``scope[ABORT]`` and a limit for sending the first request."""

    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        inner: Any = self.app

        async def app(scope: Any, receive: Any, send: Any) -> None:
            self._in_time()
            scope[ABORT] = self.transport.abort
            await inner(scope, receive, send)

        self.app = app

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As of ``asyncio.Protocol``."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEADERS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """As of ``asyncio.Protocol``."""
        self._in_time()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, and hang up where what was sent is not taken."""
        super().timeout_keep_alive_handler()
        self._deadline = self.loop.call_later(HEADERS, self.transport.abort)

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def abort_of(scope: MutableMapping[str, Any]) -> Callable[[], None]:
    """The function that hangs up on a request's client; does nothing under other servers."""
    abort: Callable[[], None] = scope.get(ABORT, _nothing)
    return abort


def _nothing() -> None:
    pass
