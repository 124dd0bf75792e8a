"""How many prompt tokens to run between two steps of the requests that generate.

This trades a prompt's speed for the others' evenness. No clock is read: it is told when steps were
done. A piece is a power of two, so that passes have few shapes.
"""

from __future__ import annotations

LEAST, FIRST, MOST = 4, 16, 2048
LONGEST = 2.0  # times a plain step that a step with a piece of a prompt may take
ROOM = 1.5  # times a plain step below which the piece may grow
_LOOK_EVERY = 16  # pieces after which a plain step is looked at again: requests get longer
_WEIGHT = 0.2  # of the newest plain step in the running mean


class Pace:
    """Adapts the pieces to the time between two steps: see the module."""

    __slots__ = ("_before", "_pieces", "_plain", "piece")

    def __init__(self) -> None:
        self.piece = FIRST
        self._pieces = 0
        self._before: float | None = None  # when the last step was done, if requests ran in it
        self._plain: float | None = None  # seconds between steps without a piece, running mean

    def next(self) -> int:
        """The tokens to run after this step; none now and then, to see what it takes plain."""
        self._pieces = (self._pieces + 1) % (_LOOK_EVERY + 1)
        return self.piece if self._pieces else 0

    def saw(self, now: float, fed: int, *, ran: bool) -> None:
        """Say that a step is done, with ``fed`` prompt tokens run since the one before."""
        before, self._before = self._before, now if ran else None
        if before is None or not ran:
            return
        seconds, plain = now - before, self._plain
        if fed == 0:
            self._plain = seconds if plain is None else plain + _WEIGHT * (seconds - plain)
        elif plain is not None and fed >= self.piece:
            if seconds > LONGEST * plain:
                self.piece = max(LEAST, self.piece // 2)
            elif seconds < ROOM * plain:
                self.piece = min(MOST, self.piece * 2)
