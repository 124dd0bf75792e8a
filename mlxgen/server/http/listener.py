"""Accepting connections, as fast as there is room for them and no faster.

Owns the listening socket's part of the event loop. Must never know what connections carry. If no
file can be opened, asyncio's own server retries hundreds of times, with a log line each; this one
pauses.

Invariant: if accepting fails, for whatever reason, the next attempt comes after ``PAUSE`` seconds,
and the log repeats a message at most every ``QUIET`` seconds. Meanwhile clients wait in the
system's queue.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable

from ..logs import log
from .connection import Connection
from .room import Room

PAUSE = 0.25
QUIET = 60.0
_AT_ONCE = 16  # accepted before other tasks get their turn
_PART = 16  # one in this many connections is closed if no file can be opened


class Listener:
    """Gives each connection of a listening socket a protocol from ``make``."""

    def __init__(
        self, listening: socket.socket, room: Room, make: Callable[[], Connection]
    ) -> None:
        self._listening = listening
        self._room = room
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._said: dict[str, float] = {}

    def open(self) -> None:
        """Start accepting."""
        self._listening.setblocking(False)
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        """Stop accepting and close the socket; connections stay."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            full = len(self._room) >= self._room.most
            if full and not self._room.can_give_up:
                self._rest("all connections are being answered")
                return
            try:
                link, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                for _ in range(1 + len(self._room) // _PART):
                    self._room.give_up_one()
                self._rest(error.strerror or type(error).__name__)
                return
            link.setblocking(False)
            task = self._loop.create_task(self._connect(link, self._make()))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
            if full:
                self._room.give_up_one()  # not the new one, which is last
                self._say(
                    "connections that wait for their clients are closed to make room for new ones"
                )
                return  # the file of the closed one becomes free in the next turn

    async def _connect(self, link: socket.socket, connection: Connection) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: connection, link)
        except OSError:  # it has already gone
            self._room.remove(connection)
            link.close()

    def _rest(self, reason: str) -> None:
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(PAUSE, self.open)
        self._say(f"new connections have to wait: {reason}")

    def _say(self, message: str) -> None:
        now = time.monotonic()
        if now - self._said.get(message, -QUIET) >= QUIET:
            self._said[message] = now
            room = self._room
            log(logging.WARNING, message, connections=len(room), most=room.most)
