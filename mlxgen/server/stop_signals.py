"""SIGINT and SIGTERM, from the first instruction of the process to its last.

Owns their handlers. Must never know what stops. Invariant: neither ends the process by itself once
``hear`` was called, however late it comes.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


def leave_at_once() -> None:
    """Before there is anything to stop: a signal ends the process, with status 0."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    _set(leave)


def hear(told: Callable[[], None]) -> None:
    """Call ``told`` in the running event loop for each signal from now on."""
    loop = asyncio.get_running_loop()

    def tell(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(told)

    _set(tell)


def ignore() -> None:
    """From now on the process ends by itself, and signals change nothing any more."""
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def _set(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in _NUMBERS:
        signal.signal(number, handler)
