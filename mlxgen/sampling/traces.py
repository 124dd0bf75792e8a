"""A bounded number of compiled functions, each for inputs of one shape.

MLX keeps a trace for every shape that a compiled function has met, as long as the function
lives, and a trace of a draw takes 10 to 300 kB. Here every function meets one shape, so
there are as many traces as functions, and dropping a function frees its trace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import mlx.core as mx

_Function = TypeVar("_Function", bound=Callable[..., Any])

KEPT = 128
_EXACT = 8  # rows; from here on, sizes have three significant bits


class Traces:
    """The compiled functions that were used most recently, at most ``kept``."""

    __slots__ = ("_functions", "_kept")

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._functions: OrderedDict[Hashable, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._functions)

    def get(self, key: Hashable, make: Callable[[], _Function]) -> _Function:
        """The compiled function for ``key``, which says what is computed and for which shapes.

        ``make`` returns a new function in every call.
        """
        known = self._functions.get(key)
        if known is not None:
            self._functions.move_to_end(key)
            return cast("_Function", known)
        function = cast("_Function", mx.compile(make()))
        self._functions[key] = function
        if len(self._functions) > self._kept:
            self._functions.popitem(last=False)
        return function


def size_for(rows: int) -> int:
    """The number of rows, at least ``rows``, that a batch is padded to.

    1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40 and so on: few sizes, with at most a quarter more
    rows.
    """
    if rows <= _EXACT:
        return rows
    step = 1 << ((rows - 1).bit_length() - 3)
    return -(-rows // step) * step
