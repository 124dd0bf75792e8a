"""The process: its socket, its open files, its signals, its exit status.

Owns the event loop of the main thread and uvicorn in it. Must never know a request. The port is
opened before the model is loaded, so that an unusable port is reported at once and ``/health``
answers meanwhile.

Invariant: the exit status says what happened (see ``service``), and the process ends even if
something hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import MachineError, OptionError
from ..loading.generation_config import in_words
from ..loading.memory import CacheDir
from ..open_files import FILES, raise_limit
from . import stop_signals
from .app import make_app
from .catalogue import Catalogue
from .engine import EngineBoot
from .gate import is_loopback
from .logs import log, set_up_logs
from .registry import Registry
from .service import REFUSED, Service
from .settings import NAME, Settings, explained, is_named

if TYPE_CHECKING:
    from ..machines.machines import Machines

_BACKLOG = 128
_SEND_BUFFER = 1 << 18  # bytes that the system buffers for a client that does not read
_SWITCH = 0.001  # seconds until a busy thread yields to the engine's thread or the loop
_FAREWELL = 3  # seconds for connections to close at the end


class Server(uvicorn.Server):
    """uvicorn's server without its handling of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Connection(H11Protocol):
    """uvicorn's connection, with limits on clients that are slow on purpose.

    uvicorn limits the time between two requests, but stops counting after one byte. Here the server
    hangs up on a client that has not sent the whole head of a request in ``sending`` seconds, or
    has read nothing of an answer for ``reading`` seconds. ``wire.body_of`` limits a body's time.
    """

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
        except h11.LocalProtocolError:  # data that is not HTTP, during an answer
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def _look(self) -> None:
        """Start the timer if it is the client's turn to send or read, and stop it otherwise."""
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
            self._look()  # the client reads, if slowly
        else:
            self.transport.abort()


def serve(
    settings: Settings, *, boot: EngineBoot | None = None, machines: Machines | None = None
) -> int:
    """Serve until a signal or a failure; returns the exit status.

    Call this on the main thread. ``boot`` loads the engine in its thread, by default according to
    ``settings``; ``machines``: the machines that run the model, if there are several. If a thread
    does not end, the process exits in here. The process must end after this call, because the
    signals that stop the server are ignored from then on.
    """
    set_up_logs(settings.log_format, settings.log_level)
    try:
        if machines is not None and any(map(is_named, settings.adapters)):
            raise OptionError(
                "adapter",
                "NAME=FOLDER shares the weights of a model, which is not possible on several"
                " machines; pass the folder alone, which makes it a part of the model",
            )
        Registry.of(settings)
        catalogue = Catalogue.of(settings)
        CacheDir.of(settings.cache_dir, settings.cache_dir_bytes)
    except OptionError as error:
        return refuse(explained(error))
    raise_limit(max(FILES, 2 * (settings.max_batch + settings.max_queue)))
    try:
        if settings.uds is not None:
            listening = listen_on(settings.uds)
        else:
            listening = listen(settings.host, settings.port)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        where = settings.uds or f"{settings.host} port {settings.port}"
        return refuse(f"cannot listen on {where}: {reason}")
    if not settings.api_keys and settings.uds is None and not is_loopback(settings.host):
        log(
            logging.WARNING,
            f"anyone who can reach {settings.host} can use this server; set --api-key",
        )
    sys.setswitchinterval(_SWITCH)
    device = None if machines is None else machines.device
    service = partial(Service, settings, boot, catalogue=catalogue, device=device)
    status, ended = asyncio.run(_serve(service, machines, listening))
    if machines is not None:
        machines.channel.close()
    if not ended:
        logging.shutdown()
        sys.stdout.flush()
        os._exit(status)
    return status


def refuse(reason: str) -> int:
    """Print in one line why the server does not start; returns the exit status."""
    print(f"{NAME}: error: {reason}", file=sys.stderr, flush=True)
    return REFUSED


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises ``OSError`` if the address is not available."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return _bound(socket.socket(family, kind, protocol), address)


def listen_on(path: str) -> socket.socket:
    """A listening Unix socket; raises ``OSError`` unless the path is free or has a dead socket."""
    if Path(path).is_socket() and not _answers(path):
        Path(path).unlink()
    return _bound(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path)


def _bound(listening: socket.socket, address: Any) -> socket.socket:
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listening.bind(address)
        listening.listen(_BACKLOG)  # a client may connect before the event loop runs
    except OSError:
        listening.close()
        raise
    return listening


def _answers(path: str) -> bool:
    """Whether a process listens on this Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(1.0)
        try:
            link.connect(path)
        except ConnectionRefusedError:
            return False
    return True


async def _serve(
    serving: Callable[[], Service], machines: Machines | None, listening: socket.socket
) -> tuple[int, bool]:
    """Serve; returns the exit status, and whether all threads have ended."""
    service, loop = serving(), asyncio.get_running_loop()
    stop_signals.hear(service.stop)
    if machines is not None:
        stop_signals.hear_launcher(service.stop)

        def lost(error: MachineError) -> None:  # in a thread of its own
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(service.fail, error)

        machines.says_losses = False
        machines.channel.on_loss(lost)
    config = uvicorn.Config(
        make_app(service),
        http=Connection,
        backlog=_BACKLOG,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_FAREWELL,
    )
    server, uds = Server(config), service.settings.uds
    host, port = service.settings.host, 0 if uds is not None else listening.getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{port}" if uds is None else f"unix:{uds}"
    service.became_ready.add_done_callback(lambda _: _announce(service, address))
    service.start()
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        waited: set[asyncio.Future[Any]] = {service.ended, running}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        status = service.ended.result() if service.ended.done() else 1
        if uds is not None:
            with contextlib.suppress(OSError):
                Path(uds).unlink()
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await running
        if service.failure is not None:
            refuse(service.failure)
        return status, await service.close()
    finally:
        stop_signals.ignore()


def _announce(service: Service, address: str) -> None:
    entries, loaded = service.fleet.catalogue.entries, service.loaded
    name, others = entries[0].name, len(entries) - 1
    if loaded is None:
        serving = f"{len(entries)} models when asked for"
    else:
        serving = f"{name}, and {others} more when asked for" if others else name
    try:
        print(f"{NAME}: ready on {address}, serving {serving}", flush=True)
    except OSError:  # standard output may be closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    about: dict[str, Any] = {"models": len(entries)} if others else {}
    if loaded is not None:
        about |= {"model": name, "sampling": in_words(loaded.sampling)}
    choice = service.settings.sampling_defaults
    log(logging.DEBUG, "ready", address=address, **about, sampling_defaults=choice)
