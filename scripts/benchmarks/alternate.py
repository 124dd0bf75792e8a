"""Comparing two ways of doing the same work, on a machine that others use too.

Both sides run in the same process, turn by turn, so that what disturbs one disturbs the other. A
ratio is taken within a turn, and the median over turns is reported with its quartiles.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Spread(NamedTuple):
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


class Comparison(NamedTuple):
    """``ratio``: how many times faster ours is than theirs. Seconds for each work."""

    ratio: Spread
    ours: Spread
    theirs: Spread


def compare(
    ours: Callable[[], float | None], theirs: Callable[[], float | None], turns: int = 9
) -> Comparison:
    """Run both in turn, each first half of the time, after one warm-up each.

    A work may return its own measure of seconds, when not all of it is to be counted.
    """
    measure(ours), measure(theirs)
    own: list[float] = []
    other: list[float] = []
    for turn in range(turns):
        for work, found in [(ours, own), (theirs, other)][:: -1 if turn % 2 else 1]:
            found.append(measure(work))
    ratios = [b / a for a, b in zip(own, other, strict=True)]
    return Comparison(Spread.of(ratios), Spread.of(own), Spread.of(other))


def measure(work: Callable[[], float | None]) -> float:
    """Seconds of one run, by its own account or by the clock."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        own = work()
        return own if own is not None else time.perf_counter() - start
    finally:
        gc.enable()


def timed(stream: Iterator[object], tokens: int) -> float:
    """Seconds from the first to the last of ``tokens`` items."""
    next(stream)
    start = time.perf_counter()
    count = 1 + sum(1 for _ in stream)
    seconds = time.perf_counter() - start
    assert count == tokens, (count, tokens)
    return seconds
