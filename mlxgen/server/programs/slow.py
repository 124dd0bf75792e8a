"""The operator's code that holds others up: how often, and in the log for how long."""

from __future__ import annotations

import logging
from collections import Counter

from ..logs import log

SLOW = 0.1  # seconds: a pause that a reader notices


class SlowCalls:
    """Calls of programs, controllers and hooks that took ``SLOW`` seconds or more, by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def saw(self, name: str, seconds: float) -> None:
        """Note how long a call took, in the thread that runs all requests."""
        if seconds < SLOW:
            return
        self.counts[name] = times = self.counts[name] + 1
        if times & (times - 1) == 0:  # the first, the second, the fourth: not for every token
            said = "the operator's code held others up"
            log(logging.WARNING, said, name=name, seconds=seconds, times=times)
