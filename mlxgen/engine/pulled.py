"""What all iterators over a generation have in common: the thread they belong to, their end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, Self, TypeVar

from .owner import Owner

R = TypeVar("R")
T = TypeVar("T")


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
        self._owner.check()
        if self._closed:
            self._obey()
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

        Any thread may call this. In a thread other than its own it is a request, which the next
        ``next()`` there carries out.
        """
        self._closed = True
        if self._owner.is_here():
            self._free()

    def _obey(self) -> None:
        """Free what is held, after another thread has closed it."""
        self._free()

    @abstractmethod
    def _move(self) -> bool:
        """Advance the generation; False at its end."""

    @abstractmethod
    def _give(self, ready: R) -> T:
        """Return, or raise, what ``next()`` gives for something that is ready."""

    @abstractmethod
    def _free(self) -> None:
        """Free what is held; a second call does nothing."""
