"""How long a step takes, and how much a token of a prompt adds to it: two running means.

Prompts run in chunks between the steps of the rows that generate. How large these may be, and
whether drafts pay, follows from the two means of ``Pace``, which all requests of a model share. A
``Clock`` feeds them with the seconds between two reads of drawn tokens: nothing else times steps.
"""

from __future__ import annotations

from typing import TypeAlias

from ..kv.held import Here
from ..kv.layers import PREFILL_STEP
from .timeline import Timeline, Watch

GAP = 3  # plain steps that a gap may take by default
UNNOTICED = 0.05  # seconds of a gap that no reader notices
MARGIN = 0.9  # share of a gap that is planned for: passes take longer as requests grow
FIRST, LEAST = 16, 8  # tokens of a chunk before anything is known, and of the smallest
WEIGHT = 1 / 4  # of the newest value in a mean
MOST = 2  # times the mean that the newest value counts as at most: beyond, the machine was busy
LITTLE = 1 / 4  # of a step: the least that a chunk is taken to add, as less is within the noise


class Pace:
    """See the module. Threads may share it, as no figure is exact.

    ``token``: the seconds that a prompt's token adds to a step of others; 0 if not known.
    """

    __slots__ = ("_steps", "token")

    def __init__(self) -> None:
        self._steps: dict[int, float] = {}  # by the number of rows, in powers of two
        self.token = 0.0

    def step(self, rows: int) -> float:
        """The seconds of a plain step of ``rows`` rows, or of the nearest number of rows seen; 0 if
        nothing is known."""
        size, steps = rows.bit_length(), self._steps
        if size not in steps and steps:
            size = min(steps, key=lambda other: abs(other - size))
        return steps.get(size, 0.0)

    def saw_step(self, rows: int, seconds: float) -> None:
        """Learn from a step without prompts or drafts."""
        known = self._steps.get(rows.bit_length(), 0.0)
        # Less than half the mean replaces it, as steps had been held up; so does the first value
        if known and 2 * seconds >= known:
            seconds = known + WEIGHT * (min(seconds, MOST * known) - known)
        self._steps[rows.bit_length()] = seconds

    def saw_prompts(self, rows: int, tokens: int, seconds: float) -> None:
        """Learn from a step that also ran ``tokens`` tokens of prompts."""
        if step := self.step(rows):
            seen = max(seconds - step, LITTLE * step) / tokens
            # A chunk that is too small to fill the device makes its tokens look expensive
            mean = self.token + WEIGHT * (min(seen, MOST * self.token) - self.token)
            self.token = min(seen, mean) if self.token else seen

    def chunk(self, rows: int, gap: float | None = None) -> int:
        """How many tokens of prompts to run between two steps of ``rows`` rows.

        The rows then wait for ``gap`` seconds at most; by default for as long as ``GAP`` steps
        take, or ``UNNOTICED`` seconds if that is more.
        """
        step = self.step(rows)
        if not step or not self.token:
            return FIRST
        if gap is None:
            gap = max(GAP * step, UNNOTICED)
        return int(min(PREFILL_STEP, max(LEAST, (MARGIN * gap - step) / self.token)))


Submitted: TypeAlias = tuple[int, int]
NOTHING: Submitted = (0, 0)


class Clock:
    """Feeds a ``pace`` with the time between two reads from a ``device``, and a ``timeline``, if
    somebody watches.

    ``submitted``: how many passes were submitted so far, and how many tokens of prompts in them. A
    draw remembers it, as reading the draw does not wait for later submissions.
    """

    __slots__ = (
        "_device",
        "_queues",
        "_rows",
        "_since",
        "_waited",
        "pace",
        "submitted",
        "timeline",
    )

    def __init__(self, pace: Pace, device: Here, watch: Watch | None = None) -> None:
        self.pace = pace
        self.submitted = NOTHING
        self.timeline = None if watch is None else Timeline(watch, device)
        self._device, self._queues = device, device.queues
        self._waited = 0  # tokens of prompts waited for so far
        self._rows = 0  # in the step before; 0: the time since then tells nothing
        self._since = 0.0

    def skip(self) -> None:
        """Note that more than a step happens before the next read."""
        self._rows = 0

    def wait(self) -> None:
        """Note that everything submitted has been waited for, outside of a step."""
        self._rows = 0
        if self.timeline is not None:
            self.timeline.waited()

    def read(self, rows: int, submitted: Submitted, *, plain: bool) -> float:
        """Note that a step of ``rows`` rows has waited for its draw, before which ``submitted`` had
        been submitted. Returns the seconds since the last read, or 0 if these are not those of a
        step alone; ``plain``: the step is of the same kind as the last one, without drafts."""
        now = self._device.now()
        passes, prompts = submitted if self._queues else self.submitted
        tokens, self._waited = prompts - self._waited, prompts
        seconds, self._since = now - self._since, now
        if self.timeline is not None:
            self.timeline.waited(self.submitted[0] - passes)
        known, self._rows = self._rows == rows, rows
        if not known:
            return 0.0
        if tokens:
            self.pace.saw_prompts(rows, tokens, seconds)
            return 0.0
        if plain:
            self.pace.saw_step(rows, seconds)
        return seconds
