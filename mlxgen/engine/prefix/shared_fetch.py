"""What several machines have on their disks of a prompt, each of its own part of the model.

Owns what the others report of their fetches. Must never know how a report comes. Invariant: no more
is read than all of them have, and no more counts as read than all of them have read.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ...tokens import Token
from .entry import Entry
from .fetch import Fetch, Report, Worth
from .folder import Folder

PATIENCE = 5.0  # seconds after which a machine that says nothing is not waited for


class SharedFetch:
    """A ``Fetching`` of the machine that leads; ``choose`` says what its ``own`` fetch reads.

    ``worth`` is asked about what is on every disk. ``followers``: how many other machines there
    are, whose fetches then have to ``aim`` at the ``goal``.
    """

    own: Fetch

    def __init__(
        self, folder: Folder, tokens: Sequence[Token], worth: Worth, followers: int
    ) -> None:
        self._folder = folder
        self._tokens = tokens
        self._worth = worth
        self._followers = followers
        self._ends: dict[int, tuple[int, ...]] = {}
        self._reports: dict[int, Report] = {}
        self._moved = threading.Condition()

    def heard(self, rank: int, report: Report) -> None:
        """Note how far another machine is; any thread may call this."""
        with self._moved:
            if report.ends is not None:
                self._ends[rank] = report.ends
            self._reports[rank] = report
            self._moved.notify_all()

    def choose(self, found: list[Entry]) -> list[Entry]:
        """What is worth being read of what is on every disk; waits until that is known."""
        with self._moved:
            if not self._moved.wait_for(lambda: len(self._ends) == self._followers, PATIENCE):
                return []
            ends = set(self._folder.ends(self._tokens)).intersection(*self._ends.values())
        first = found[0].start
        found = self._folder.find(self._tokens, max(ends, default=0))
        found = [entry for entry in found if entry.stop > first]
        return self._worth(found) if found and found[-1].stop in ends else []

    @property
    def goal(self) -> int | None:
        return self.own.goal

    @property
    def came(self) -> int:
        return min(each.came for each in self._all)

    @property
    def reached(self) -> int:
        return min(each.reached for each in self._all)

    @property
    def is_over(self) -> bool:
        """Whether one of them has ended that is no further than the others."""
        all_of = self._all
        reached = min(each.reached for each in all_of)
        return any(each.is_over and each.reached == reached for each in all_of)

    @property
    def nbytes(self) -> int:
        return self.own.nbytes

    def wait(self, timeout: float | None = None) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self.is_over, timeout)

    @property
    def _all(self) -> list[Fetch | Report]:
        with self._moved:
            others = list(self._reports.values())
        return [self.own, *others, *[Report()] * (self._followers - len(others))]
