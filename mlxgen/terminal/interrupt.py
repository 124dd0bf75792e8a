"""Ctrl-C, while an answer runs that should stop, and before anything runs.

Owns the signal's handler while a context is entered. Must never know what runs. Invariant:
afterwards the handler is the one from before.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


@contextmanager
def leaving_at_once(status: int) -> Iterator[None]:
    """A context in which Ctrl-C ends the process with ``status`` and prints nothing.

    It is for the start, when there is nothing to clean up: an exception during the import of an
    extension module turns into another one. If the signal is ignored, or outside the main thread,
    nothing changes.
    """
    if not _is_ours():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: os._exit(status))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _is_ours() -> bool:
    own = threading.current_thread() is threading.main_thread()
    return own and signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Brake:
    """A context in which Ctrl-C sets ``pressed``, to be checked between two steps.

    Before ``runs`` is set, and from the second press on, it raises ``KeyboardInterrupt`` as usual,
    because nobody checks. If the signal is ignored, or outside the main thread, nothing changes.
    """

    def __init__(self) -> None:
        self.runs = False
        self.pressed = False
        self._before: Any = None

    def __enter__(self) -> Brake:
        if _is_ours():
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: FrameType | None) -> None:
        again, self.pressed = self.pressed, True
        if again or not self.runs:
            raise KeyboardInterrupt
