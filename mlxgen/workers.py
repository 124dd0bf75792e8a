"""Threads for work with MLX that live as long as the process.

A thread that runs an operation of MLX gets a stream, and on a CPU a native thread behind it that
nothing ends. And a thread that cleans up before it ends (``mx.clear_streams``) can freeze the whole
process: it holds the lock of MLX's compiled functions and waits for the interpreter's, while a
collection in another thread holds that one, frees a compiled function, and waits for MLX's. So no
such thread ends: it takes further work instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue


class Work:
    """Something that a worker does, in the thread of this ``ident``."""

    def __init__(self, do: Callable[[], object], name: str) -> None:
        self._do: Callable[[], object] | None = do
        self._name = name
        self._over = threading.Event()
        self.ident = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its end; returns whether it has come."""
        return self._over.wait(timeout)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set()

    def run(self) -> None:
        """Do it, in this thread. What it raises goes to the thread's hook for errors."""
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
            del do  # whatever it held is free when it is over
            own.name = "idle worker"
            self._over.set()


class Workers:
    """The threads of this process; ``workers()`` gives them. Any thread may use them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Work]] = []

    def start(self, do: Callable[[], object], name: str) -> Work:
        """Have something done in a thread of its own, which is called ``name`` meanwhile."""
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
    """The threads of this process."""
    return Workers()
