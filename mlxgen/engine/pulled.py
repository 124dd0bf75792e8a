"""What all iterators over a generation have in common: the thread they belong to, and their end.

MLX's streams belong to a thread, and so does every array that is not computed yet: what one step
leaves for the next cannot be computed on another thread, and two threads in one step crash the
process. The two checks here raise before that.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, Self, TypeVar

from ..errors import StateError

R = TypeVar("R")
T = TypeVar("T")


class Owner:
    """The first thread that uses an object; ``what`` names the object in messages.

    The thread itself is kept, as the number of a thread that has ended may be reused.
    """

    __slots__ = ("_lock", "_what", "thread")

    def __init__(self, what: str) -> None:
        self._what = what
        self.thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise ``StateError`` unless the calling thread is the owner, or becomes it."""
        if not self.is_here():
            owner = self.thread
            assert owner is not None
            raise StateError(
                f"this {self._what} belongs to the thread {owner.name!r}, which used it first;"
                f" use it there, or make one {self._what} per thread"
            )

    def is_here(self) -> bool:
        """Whether the calling thread is the owner; it becomes the owner if there is none."""
        here = threading.current_thread()
        with self._lock:
            if self.thread is None:
                self.thread = here
            return self.thread is here


class OneAtATime:
    """Lets one call in at a time; ``what`` names the called object in messages."""

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


class Pulled(ABC, Generic[R, T]):
    """An iterator of ``T`` and a context manager; each ``T`` is made from an ``R`` that is ready.

    It belongs to the thread that calls ``next()`` first. Any thread may ``close`` it.
    """

    def __init__(self, what: str) -> None:
        self._owner = Owner(what)
        self._closed = False
        self._ready: deque[R] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._owner.thread is not threading.current_thread():
            self._owner.check()
        if self._closed:
            self._free()
        while not self._ready:
            if not self._move():
                raise StopIteration
        return self._give(self._ready.popleft())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop generating and free all caches; a second call does nothing.

        Any thread may call this. From a thread other than its own it is a request, which the next
        ``next()`` there carries out.
        """
        self._closed = True
        if self._owner.is_here():
            self._free()

    @abstractmethod
    def _move(self) -> bool:
        """Advance the generation; False at its end."""

    @abstractmethod
    def _give(self, ready: R) -> T:
        """What ``next()`` returns, or raises, for an item that is ready."""

    @abstractmethod
    def _free(self) -> None:
        """Free what is held; a second call does nothing."""
