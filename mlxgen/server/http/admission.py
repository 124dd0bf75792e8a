"""How many requests are admitted, and how large their bodies may be together.

Owns the requests being answered, the bytes of their bodies, and the estimate of when to try again.
Must never know what a request asks for. It belongs to the event loop.

A request counts once its body has arrived, so that slow senders keep nobody out. If all bodies
together are too large, the oldest one that is still arriving gives way.

Invariant: everything that is admitted is released, however it ends.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

from ..errors import RequestError

BODIES = 128 << 20  # bytes of bodies that are read and not yet parsed
_LONGEST_WAIT = 60


class Admission:
    """The door: ``with admission.enter(interrupt) as visit``."""

    def __init__(self, *, max_batch: int, most: int, bodies: int = BODIES) -> None:
        self._max_batch = max_batch
        self._most = most
        self.bodies_left = bodies
        self._typical = 1.0  # seconds that recent requests took
        self.visits: dict[Visit, None] = {}
        """The requests being answered, in the order in which they began."""
        self.inside = 0

    @contextlib.contextmanager
    def enter(self, interrupt: Callable[[BaseException], None]) -> Iterator[Visit]:
        """Admit a request; raises ``RequestError`` (429) if there are too many.

        ``interrupt`` is called with an error if it has to end early.
        """
        self.check()
        visit = Visit(self, interrupt)
        self.visits[visit] = None
        try:
            yield visit
        finally:
            visit.understood()
            self.inside -= visit.counts
            del self.visits[visit]

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

    def __init__(self, door: Admission, interrupt: Callable[[BaseException], None]) -> None:
        self._door = door
        self.interrupt = interrupt
        self.held = 0  # bytes of its body
        self.arrives = True  # its body does
        self.counts = False

    def hold(self, count: int) -> None:
        """Count bytes; raises ``RequestError`` (429) if all bodies together are too large."""
        door = self._door
        self.held += count
        door.bodies_left -= count
        while door.bodies_left < 0:
            first = next((each for each in door.visits if each.arrives and each.held), self)
            if first is self:
                raise door.full()
            first.arrives = False
            first.understood()
            first.interrupt(door.full())

    def arrived(self) -> None:
        """The body is complete; raises ``RequestError`` (429) if there are too many requests."""
        self._door.check()
        self.arrives = False
        self.counts = True
        self._door.inside += 1

    def understood(self) -> None:
        """The bytes of the body are no longer needed."""
        self._door.bodies_left += self.held
        self.held = 0
