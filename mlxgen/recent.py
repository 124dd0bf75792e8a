"""A bounded cache that several threads may use: of filters, and of sampling programs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key, made when first asked for; it keeps the ``size`` most recently used ones."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K, build: Callable[[], V]) -> V:
        """The value of ``key``. Two threads that ask at once may both build it."""
        with self._lock:
            try:
                self._values.move_to_end(key)
                return self._values[key]
            except KeyError:
                pass
        value = build()
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._size:
                self._values.popitem(last=False)
        return value

    def forget(self, key: K) -> None:
        """Drops the value of ``key``, so that it is made anew when next asked for."""
        with self._lock:
            self._values.pop(key, None)
