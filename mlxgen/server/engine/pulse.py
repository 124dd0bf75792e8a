"""Whether the engine still takes steps.

Owns the time that has passed without one. Must never know what a step is, or what to do about it.
It belongs to the event loop and measures time there in ticks; the time between two ticks counts as
two at most, whatever the clock says. While the process is stopped or the machine sleeps there are
no ticks, and whether a clock runs during sleep depends on the system (``time.monotonic`` does not
on macOS and Linux). So an engine that has just woken up is not reported as missing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ..logs import log

TICK = 1.0  # seconds between two checks
STALL = 300.0  # seconds without a step: longer than any piece of a prompt takes


class Pulse:
    """Watches ``beats``, the number of steps so far, or ``None`` while there is nothing to do.

    After ``limit`` seconds without a step the pulse is missing, until the next one; ``STALL`` if it
    is not given.
    """

    def __init__(
        self, beats: Callable[[], int | None], limit: float | None = None, *, tick: float = TICK
    ) -> None:
        self._beats = beats
        self._limit = STALL if limit is None else limit
        self._tick = tick
        self._seen: int | None = None
        self._looked = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.seconds = 0.0
        """The time without a step."""

    @property
    def is_missing(self) -> bool:
        """Whether that has been too long."""
        return self._limit <= self.seconds

    def start(self) -> None:
        """Start watching."""
        self._looked = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(self._tick, self._look)

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.saw(self._beats(), time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(self._tick, self._look)

    def saw(self, beats: int | None, now: float) -> None:
        """Take in the number of steps at a time."""
        passed, self._looked = min(now - self._looked, 2 * self._tick), now
        was_missing = self.is_missing
        if beats is None or beats != self._seen:
            self._seen, self.seconds = beats, 0.0
        else:
            self.seconds += passed
        if self.is_missing and not was_missing:
            log(logging.ERROR, "the engine has stopped taking steps", seconds=self.seconds)
        elif was_missing and not self.is_missing:
            log(logging.WARNING, "the engine takes steps again")
