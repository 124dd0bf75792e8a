"""Submitting and reading arrays, and the time: all that the engine asks a device besides commands.

A device that only counts what its work would take answers these instead. Nothing else in the
engine waits for drawn tokens or looks at a clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import cast

import mlx.core as mx


class Here:
    """The device of this process. It has no state."""

    @property
    def queues(self) -> bool:
        """Whether a submission returns long before the work is done.

        MLX's CPU back end lets only few tasks wait, so that there most of a pass is done by then.
        """
        return mx.default_device() != mx.Device(mx.cpu)

    def submit(self, arrays: Iterable[mx.array | None]) -> None:
        """Start computing what a draw gives; these are ready together."""
        mx.async_eval(arrays)

    def read(self, array: mx.array) -> list[int]:
        """The integers of an array [n]; this waits for the device."""
        return cast(list[int], array.tolist())

    def now(self) -> float:
        """Seconds on the clock that all durations are measured with."""
        return time.perf_counter()


HERE = Here()
