"""Whose fault it is that the model failed with sequences that ran side by side.

Of each of them it is known that it has not run alone yet, that it came through alone, or that the
model failed with it alone. The scheduler lets one at a time run from its history, with nothing on
the device that was there before.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..step.fault import Fault
from ..step.handle import Handle

PROOF = 4  # steps alone that clear a sequence: all that a look-ahead had submitted is read by then


class Trial:
    """See the module. ``works``: the model has run something since it failed.

    - ``cleared``: those that wait for the end of it, to go on together.
    - ``accused``: those that the model failed with, while nothing else shows that it works.
    - ``found``: whether any was found to be at fault.
    """

    def __init__(self, suspects: Iterable[Handle]) -> None:
        self._left = set(suspects)
        self.size = len(self._left)
        self.cleared: list[Handle] = []
        self.accused: list[tuple[Handle, Fault]] = []
        self.works = self.found = False
        self._steps = 0

    def __contains__(self, handle: Handle) -> bool:
        """Whether a sequence has not shown yet how it runs alone."""
        return handle in self._left

    @property
    def is_over(self) -> bool:
        """Whether all is known that there is to know."""
        return not self._left

    def came_through(self, handle: Handle) -> bool:
        """Say that a sequence came through a step alone; whether that clears it."""
        self._steps += 1
        if handle not in self._left or self._steps < PROOF:
            return False
        self.works = True
        return True

    def again(self, handle: Handle) -> None:
        """A sequence begins once more to show how it runs."""
        self._steps = 0

    def accuse(self, handle: Handle, fault: Fault) -> None:
        """The model failed with a sequence alone, and may fail with all."""
        self.accused.append((handle, fault))

    def drop(self, handle: Handle) -> None:
        """Forget a sequence, and begin to look at the next one."""
        if handle in self._left:
            self._steps = 0
            self._left.discard(handle)
        self.cleared = [each for each in self.cleared if each is not handle]
        self.accused = [each for each in self.accused if each[0] is not handle]
