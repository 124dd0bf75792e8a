"""A stretch that Ctrl-C does not break off in the middle."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A context after which SIGINT does what it would have done in it; for the main thread, as no
    other one is interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda *given: noted.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if noted and callable(before):
            before(*noted[-1])
