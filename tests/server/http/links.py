"""The server's network side around a small application, and clients that are bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from mlxgen.server.connection import Connection
from mlxgen.server.process import Server, listen

WAIT = 30.0  # seconds after which a test fails instead of hanging
HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"


class Hasty(Connection):
    """A connection with little patience."""

    sending = reading = 0.2


async def whole_body(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, and answer with its length."""
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length += len(message["body"])
        more = message["more_body"]
    await answered(send, str(length).encode())


async def answered(send: Any, body: bytes) -> None:
    """Send an answer."""
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Link:
    """A client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer: status, headers, body by its length."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body

    async def ask(self, data: bytes = GET) -> int:
        """Send a request; the status of its answer."""
        await self.send(data)
        return (await self.answer())[0]

    async def closed(self) -> bytes:
        """What comes before the server closes the connection."""
        with contextlib.suppress(ConnectionError):
            return await self.reader.read()
        return b""

    async def drip(self) -> None:
        """Send a byte again and again until the server closes the connection."""
        with contextlib.suppress(ConnectionError):
            while not self.reader.at_eof():
                await self.send(b"x")
                await asyncio.sleep(0.02)


class Network:
    """A server; ``port`` is its port."""

    def __init__(self, port: int, server: uvicorn.Server, links: contextlib.AsyncExitStack) -> None:
        self.port = port
        self._server = server
        self._links = links

    def __len__(self) -> int:
        """How many connections it has."""
        return len(self._server.server_state.connections)

    async def link(self) -> Link:
        link = Link(*await asyncio.open_connection("127.0.0.1", self.port))
        self._links.callback(link.writer.close)
        return link


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp = whole_body, http: type[Connection] = Connection
) -> AsyncIterator[Network]:
    """The server's own network side, in this event loop."""
    config = uvicorn.Config(
        app, http=http, backlog=1, ws="none", lifespan="off", log_config=None, access_log=False
    )
    server = Server(config)
    listening = listen("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    port = listening.getsockname()[1]
    try:
        async with contextlib.AsyncExitStack() as links:
            yield Network(port, server, links)
    finally:
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        server.should_exit = True
        await serving


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test; one that hangs fails."""
    asyncio.run(asyncio.wait_for(test(), WAIT))
