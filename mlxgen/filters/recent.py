"""Recent: the few things that were made last, for tables that would else grow without end.

Owns a bounded mapping that several threads may use. Must never know what it keeps.

Invariant: it holds at most ``size`` values, the most recently asked for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key, made when they are first asked for, the oldest forgotten."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K, build: Callable[[], V]) -> V:
        """The value of ``key``. Two threads that ask at once may both build it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = build()
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._size:
                self._values.popitem(last=False)
        return value

    def forget(self, key: K) -> None:
        """Have ``key`` made anew when it is next asked for."""
        with self._lock:
            self._values.pop(key, None)
