"""The process: its socket, its signals, its exit status.

Owns the event loop of the main thread and uvicorn in it. Must never know a request. The port is
taken before the model is loaded, so that a wrong one is known at once, and ``/health`` answers
meanwhile.

Invariant: the exit status says what happened (see ``service``), and whatever hangs, the process
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import uvicorn

from .app import make_app
from .boot import booting
from .connection import Connection
from .engine_thread import Boot
from .gate import is_loopback
from .logs import log, set_up_logs
from .service import REFUSED, Service, why
from .settings import NAME, Settings

CONNECTIONS = 1024  # open at a time; more get a 503 from uvicorn
_BACKLOG = 512
_SEND_BUFFER = 1 << 18  # bytes that the system holds for a client that does not read
_FAREWELL = 3  # seconds in which connections have to close at the end


class Server(uvicorn.Server):
    """uvicorn's server without its handling of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        raise AssertionError("signals are handled by the process")


def serve(settings: Settings, *, boot: Boot | None = None) -> int:
    """Serve until a signal or a failure; returns the exit status.

    For the main thread. ``boot`` loads the engine in its thread; by default it loads what
    ``settings`` say. A thread that does not end makes the process exit right here.
    """
    set_up_logs(settings.log_format, settings.log_level)
    try:
        listening = listen(settings.host, settings.port)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return refuse(f"cannot listen on {settings.host} port {settings.port}: {reason}")
    if settings.api_key is None and not is_loopback(settings.host):
        log(
            logging.WARNING,
            f"anybody who reaches {settings.host} can use this server; set --api-key",
        )
    status, ended = asyncio.run(_serve(settings, boot or booting(settings), listening))
    if not ended:
        logging.shutdown()
        sys.stdout.flush()
        os._exit(status)
    return status


def refuse(reason: str) -> int:
    """Say on one line why the server does not start; returns the exit status."""
    print(f"{NAME}: error: {reason}", file=sys.stderr, flush=True)
    return REFUSED


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. OSError if the address cannot be had."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


async def _serve(settings: Settings, boot: Boot, listening: socket.socket) -> tuple[int, bool]:
    """The exit status, and whether all threads have ended."""
    service = Service(settings, boot)
    server = Server(
        uvicorn.Config(
            make_app(service),
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=_FAREWELL,
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, service.stop)
    address = _address(settings.host, listening.getsockname()[1])
    service.became_ready.add_done_callback(lambda _: _announce(service, address))
    service.start()
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        waited: set[asyncio.Future[Any]] = {service.ended, serving}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        status = service.ended.result() if service.ended.done() else 1
    finally:
        server.should_exit = True
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    if service.failure is not None:
        refuse(why(service.failure))
    ended = await service.close()
    return status, ended


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(service: Service, address: str) -> None:
    if service.became_ready.cancelled():
        return
    name = service.model.name
    try:
        print(f"{NAME}: ready on {address}, serving {name}", flush=True)
    except OSError:  # nobody has to read it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    log(logging.INFO, "ready", address=address, model=name)
