"""How many requests are let in, and how much their bodies may hold together.

Owns these two counts and the guess when it is worth trying again. Must never know what a
request asks for. It belongs to the event loop. Invariant: everything that was admitted is
given back, whatever becomes of it.
"""

from __future__ import annotations

import math
from types import TracebackType

from .calls import RequestError

BODIES = 128 << 20  # bytes of bodies that are read and not yet understood
_LONGEST_WAIT = 60


class Admission:
    """The door: ``with admission.enter() as visit``."""

    def __init__(self, *, max_batch: int, max_queue: int, bodies: int = BODIES) -> None:
        self._max_batch = max_batch
        self._most = max_batch + max_queue
        self._bodies_left = bodies
        self._typical = 1.0  # seconds of a recent request that was answered
        self.inside = 0

    def enter(self) -> Visit:
        """Let a request in; RequestError (429) where there are too many."""
        if self.inside >= self._most:
            raise self.full()
        return Visit(self)

    def full(self) -> RequestError:
        """The error of a request that has no place."""
        return RequestError(
            f"the server is busy with {self.inside} requests; try again in a while",
            status=429,
            code="queue_full",
        )

    def retry_after(self) -> int:
        """Seconds after which a place may be free."""
        wait = self._typical * self.inside / self._max_batch
        return max(1, min(_LONGEST_WAIT, math.ceil(wait)))

    def took(self, seconds: float) -> None:
        """Learn how long a request took that was answered."""
        self._typical += 0.1 * (seconds - self._typical)


class Visit:
    """One request that was let in."""

    __slots__ = ("_admission", "_held")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._held = 0

    def __enter__(self) -> Visit:
        self._admission.inside += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.understood()
        self._admission.inside -= 1

    def hold(self, count: int) -> None:
        """Bytes of the body arrived; RequestError (429) where all bodies are too much."""
        self._admission._bodies_left -= count
        self._held += count
        if self._admission._bodies_left < 0:
            raise self._admission.full()

    def understood(self) -> None:
        """The bytes of the body are needed no more."""
        self._admission._bodies_left += self._held
        self._held = 0
