"""How many requests are admitted, and how large their bodies may be together.

Owns these two counts and the estimate of when to try again. Must never know what a request asks
for. It belongs to the event loop.

A request counts once its body has arrived, so that slow senders keep nobody out. If all bodies
together are too large, the oldest one that is still arriving gives way.

Invariant: everything that is admitted is released, however it ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType

from .errors import RequestError

BODIES = 128 << 20  # bytes of bodies that are read and not yet parsed
_LONGEST_WAIT = 60


class Admission:
    """The door: ``with admission.enter() as visit``."""

    def __init__(self, *, max_batch: int, most: int, bodies: int = BODIES) -> None:
        self._max_batch = max_batch
        self._most = most
        self._bodies_left = bodies
        self._arriving: dict[Visit, None] = {}  # in the order in which they began
        self._typical = 1.0  # seconds that recent requests took
        self.inside = 0

    @property
    def arriving(self) -> int:
        """How many bodies are still arriving."""
        return len(self._arriving)

    def enter(self, give_way: Callable[[RequestError], None]) -> Visit:
        """Admit a request; raises ``RequestError`` (429) if there are too many.

        ``give_way`` is called if it has to give way while its body arrives.
        """
        self.check()
        return Visit(self, give_way)

    def check(self) -> None:
        """Raise ``RequestError`` (429) if there are too many requests."""
        if self.inside >= self._most:
            raise self.full()

    def full(self) -> RequestError:
        """The error for a request that is not admitted."""
        return RequestError(
            f"the server is busy with {self.inside} requests; try again later",
            status=429,
            code="queue_full",
        )

    def retry_after(self) -> int:
        """Seconds after which a place may be free."""
        wait = self._typical * self.inside / self._max_batch
        return max(1, min(_LONGEST_WAIT, math.ceil(wait)))

    def took(self, seconds: float) -> None:
        """Learn how long an answered request took."""
        self._typical += 0.1 * (seconds - self._typical)


class Visit:
    """One admitted request."""

    __slots__ = ("_admission", "_counts", "_give_way", "_held")

    def __init__(self, admission: Admission, give_way: Callable[[RequestError], None]) -> None:
        self._admission = admission
        self._give_way = give_way
        self._held = 0
        self._counts = False

    def __enter__(self) -> Visit:
        self._admission._arriving[self] = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.understood()
        self._admission._arriving.pop(self, None)
        self._admission.inside -= self._counts
        self._counts = False

    def hold(self, count: int) -> None:
        """Count bytes; raises ``RequestError`` (429) if all bodies together are too large."""
        admission = self._admission
        admission._bodies_left -= count
        self._held += count
        while admission._bodies_left < 0:
            first = next((visit for visit in admission._arriving if visit._held), self)
            if first is self:
                raise admission.full()
            first._leave()

    def _leave(self) -> None:
        self.understood()
        del self._admission._arriving[self]
        self._give_way(self._admission.full())

    def arrived(self) -> None:
        """The body is complete; raises ``RequestError`` (429) if there are too many requests."""
        self._admission.check()
        self._admission._arriving.pop(self, None)
        self._counts = True
        self._admission.inside += 1

    def understood(self) -> None:
        """The bytes of the body are no longer needed."""
        self._admission._bodies_left += self._held
        self._held = 0
