"""Threads for work with MLX that live as long as the process.

A thread that runs an operation of MLX gets a stream, and on a CPU a native thread, which nothing
ends. And a thread that cleans up before it ends (``mx.clear_streams``) can deadlock the process: it
holds the lock of MLX's compiled functions and waits for the GIL, while a garbage collection in
another thread holds the GIL, frees a compiled function, and waits for MLX's lock. So no such thread
ends: it takes further work instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue


class Work:
    """A job for a worker; ``ident`` is the thread that runs it."""

    def __init__(self, do: Callable[[], object], name: str) -> None:
        self._do: Callable[[], object] | None = do
        self._name = name
        self._over = threading.Event()
        self.ident = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its end; returns whether it has ended."""
        return self._over.wait(timeout)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set()

    def run(self) -> None:
        """Do it in this thread. An exception goes to ``threading.excepthook``."""
        own = threading.current_thread()
        self.ident, own.name = threading.get_ident(), self._name
        do, self._do = self._do, None
        assert do is not None
        try:
            do()
        except BaseException as error:
            hook = threading.ExceptHookArgs((type(error), error, error.__traceback__, own))
            threading.excepthook(hook)
        finally:
            del do  # so that what it held is free before the end is announced
            own.name = "idle worker"
            self._over.set()


class Workers:
    """The worker threads of this process; ``workers()`` gives them. Any thread may use them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Work]] = []

    def start(self, do: Callable[[], object], name: str) -> Work:
        """Run ``do`` in a thread of its own, which is called ``name`` meanwhile."""
        work = Work(do, name)
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue()
            threading.Thread(target=self._live, args=(inbox,), name=name, daemon=True).start()
        inbox.put(work)
        return work

    def _live(self, inbox: SimpleQueue[Work]) -> None:
        while True:
            work = inbox.get()
            work.run()
            del work
            with self._lock:
                self._idle.append(inbox)


@cache
def workers() -> Workers:
    """The worker threads of this process."""
    return Workers()
