"""How much of the prompts to run between two steps of the requests that generate.

This trades a prompt's speed for the others' evenness. It goes by what passes take, never by a
number of tokens that suits one device.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..kv import PREFILL_STEP
from ..limits import Limits
from ..step.cost import Meter

STEPS = 4  # plain steps that a gap may take, if nobody says how long it may be
UNNOTICED = 0.05  # seconds of a gap that nobody notices
_MARGIN = 0.9  # of a gap: passes take longer as requests grow


class Budget(NamedTuple):
    """What prompts may take: so many tokens, and so many seconds."""

    tokens: int
    seconds: float = math.inf


class Pace:
    """The budgets under the caller's ``limits``, by what a ``meter`` has learned."""

    __slots__ = ("_gap", "_meter", "_tokens")

    def __init__(self, limits: Limits, meter: Meter) -> None:
        self._tokens = limits.prefill_chunk
        self._gap = limits.longest_gap
        self._meter = meter

    def alone(self) -> Budget:
        """While no request generates."""
        return Budget(self._tokens or PREFILL_STEP)

    def next(self) -> Budget:
        """After a step."""
        if self._tokens is not None:
            return Budget(self._tokens)
        plain = self._meter.plain
        gap = self._gap if self._gap is not None else max(STEPS * plain, UNNOTICED)
        return Budget(PREFILL_STEP, max(0.0, _MARGIN * gap - plain))
