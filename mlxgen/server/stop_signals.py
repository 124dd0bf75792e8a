"""Signals and other ways to stop the process from outside, from its first instruction to its last.

Owns the handlers of SIGINT, SIGTERM and SIGHUP. Must never know what stops. Invariant: once
``hear`` was called, no signal ends the process directly, however late it comes.

A lost terminal connection sends SIGHUP, and nohup ignores it. If ``mlx.launch`` itself is ended, it
sends nothing, but the other end of standard input closes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import Callable
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def leave_at_once() -> None:
    """Until there is something to stop, let a signal end the process with status 0."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    _set(leave)


def hear(told: Callable[[], None]) -> None:
    """From now on, call ``told`` in the running event loop for each signal."""
    loop = asyncio.get_running_loop()

    def tell(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(told)

    _set(tell)


def hear_launcher(told: Callable[[], None]) -> None:
    """If standard input is a pipe, call ``told`` in the running event loop when it closes; its data
    is ignored."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(0, 1 << 16):
            loop.remove_reader(0)
            told()

    if sys.stdin is not None and stat.S_ISFIFO(os.fstat(0).st_mode):
        loop.add_reader(0, look)


def ignore() -> None:
    """Ignore signals from now on: the process is ending by itself."""
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def _set(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in _NUMBERS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
