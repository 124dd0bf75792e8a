"""Who may call: the thread that something belongs to, or one call at a time.

MLX's streams belong to a thread, and so does every array that is not computed yet: what one
step leaves for the next cannot be computed on another thread, and two threads in one step end
the process. The two checks here raise before that.
"""

from __future__ import annotations

import threading

from ..errors import StateError


class Owner:
    """The first thread that uses a thing; ``what`` names the thing, for messages.

    The thread itself is kept, as the number of a thread that has ended may be reused.
    """

    __slots__ = ("_lock", "_thread", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise ``StateError`` unless the calling thread is the owner, or becomes it."""
        if self._thread is not threading.current_thread() and not self.is_here():
            owner = self._thread
            assert owner is not None
            raise StateError(
                f"this {self._what} belongs to the thread {owner.name!r}, which used it first;"
                f" use it there, or make one {self._what} per thread"
            )

    def is_here(self) -> bool:
        """Whether the calling thread is the owner; it becomes the owner if there is none."""
        here = threading.current_thread()
        with self._lock:
            if self._thread is None:
                self._thread = here
            return self._thread is here


class OneAtATime:
    """Lets one call in at a time; ``what`` names the thing that is called, for messages."""

    __slots__ = ("_lock", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(False):
            raise StateError(
                f"another call of this {self._what} has not returned (it is in another thread, or "
                f"made this call); wait for it, or make one {self._what} per thread"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
