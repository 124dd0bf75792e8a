"""SIGINT and SIGTERM, from the first instruction of the process to its last.

Owns their handlers. Must never know what stops. Invariant: once ``hear`` was called, neither signal
ends the process by itself, however late it comes.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


def leave_at_once() -> None:
    """While there is nothing to stop yet, let a signal end the process with status 0."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    _set(leave)


def hear(told: Callable[[], None]) -> None:
    """From now on, call ``told`` in the running event loop for each signal."""
    loop = asyncio.get_running_loop()

    def tell(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(told)

    _set(tell)


def ignore() -> None:
    """Ignore signals from now on: the process is ending by itself."""
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def _set(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in _NUMBERS:
        signal.signal(number, handler)
