"""A connection to one other rank: whole frames, out and in, without ever waiting.

Must never know what a frame is for. A frame is its kind (one byte), the length of its body (four
bytes, big-endian) and the body.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import NamedTuple

UNHEARD = 6
"""Seconds after which the system gives up a machine that confirms nothing."""

_HEAD = struct.Struct("!BI")
_LARGEST = 1 << 30  # bytes of a body; whoever says more does not speak of frames
_PIECE = 1 << 18  # bytes that are read at once
_RXT_CONNDROPTIME = 0x80  # of macOS, in its netinet/tcp.h; the socket module lacks it


class Frame(NamedTuple):
    kind: int
    body: bytes


class GarbageError(Exception):
    """What came is not a frame."""


class Link:
    """A connected socket. Any thread may send; one thread receives and flushes.

    An error while sending is kept for the one who receives: what the other rank said before it
    went is still to be read then.

    The system itself notices a machine that is gone, with any interpreter that does not run:
    where something is sent at least once a second, ``receive`` then raises ``TimeoutError``.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):
            if sys.platform == "darwin":
                connection.setsockopt(socket.IPPROTO_TCP, _RXT_CONNDROPTIME, UNHEARD)
            else:
                wait = 1000 * UNHEARD
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, wait)
        self.socket = connection
        self._lock = threading.Lock()
        self._error: OSError | None = None  # of sending
        self._unsent: deque[memoryview] = deque()
        self._unread = bytearray()

    @property
    def waiting(self) -> bool:
        """Whether there is something for ``flush`` to do."""
        return bool(self._unsent)

    @property
    def broken(self) -> bool:
        """Whether nothing can be sent any more; ``receive`` then says why."""
        return self._error is not None

    def send(self, kind: int, body: bytes = b"") -> None:
        """Send a frame, after those before it. What the socket does not take is for ``flush``."""
        with self._lock:
            if self.broken:
                return
            self._unsent.append(memoryview(_HEAD.pack(kind, len(body)) + body))
            self._flush()

    def flush(self) -> None:
        """Send what the socket takes now."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                rest = self._unsent[0]
                sent = self.socket.send(rest)
                if sent < len(rest):
                    self._unsent[0] = rest[sent:]
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError as error:
            self._error = error
            self._unsent.clear()

    def receive(self) -> list[Frame]:
        """The frames that have come whole.

        Raises ``EOFError`` or ``OSError`` at the end, and ``GarbageError``.
        """
        try:
            data = self.socket.recv(_PIECE)
        except BlockingIOError:
            if self._error is not None:
                raise self._error from None
            return []
        if not data:
            raise EOFError
        self._unread += data
        return list(self._frames())

    def _frames(self) -> list[Frame]:
        unread, start, found = self._unread, 0, []
        while len(unread) - start >= _HEAD.size:
            kind, length = _HEAD.unpack_from(unread, start)
            if length > _LARGEST:
                raise GarbageError
            end = start + _HEAD.size + length
            if end > len(unread):
                break
            found.append(Frame(kind, bytes(unread[start + _HEAD.size : end])))
            start = end
        del unread[:start]
        return found

    def finish(self) -> None:
        """Say that nothing more will be sent."""
        with self._lock, suppress(OSError):  # if the other rank was faster
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()
