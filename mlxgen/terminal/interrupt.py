"""Ctrl-C: while an answer runs, which it stops, and before anything runs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def _interrupts_call(act: Callable[[], object]) -> Iterator[None]:
    """A context in which Ctrl-C calls ``act``, and afterwards does what it did before.

    If the signal is ignored, or outside the main thread, nothing changes.
    """
    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def leaving_at_once(status: int) -> AbstractContextManager[None]:
    """A context in which Ctrl-C ends the process with ``status`` and prints nothing.

    It is for the start, when there is nothing to clean up: an exception during the import of an
    extension module turns into another one.
    """
    return _interrupts_call(lambda: os._exit(status))


def end_as_interrupted() -> None:
    """From now on, let SIGTERM and SIGHUP do what Ctrl-C does, instead of ending the process in the
    middle of work that other ranks take part in."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, frame: signal.raise_signal(signal.SIGINT))


class Brake:
    """Ctrl-C sets ``pressed`` while the brake is ``ready``, to be checked between two steps.

    Before ``runs`` is set, and from the second press on, it raises ``KeyboardInterrupt`` as usual,
    because nothing checks ``pressed`` then.
    """

    def __init__(self) -> None:
        self.runs = False
        self.pressed = False

    def ready(self) -> AbstractContextManager[None]:
        """The context in which it works."""
        return _interrupts_call(self._press)

    def _press(self) -> None:
        again, self.pressed = self.pressed, True
        if again or not self.runs:
            raise KeyboardInterrupt
