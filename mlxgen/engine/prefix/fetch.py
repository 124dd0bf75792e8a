"""What a folder has of a prompt, read ahead in a thread of its own.

Owns the thread and what it has read. Must never know why it is wanted, or what becomes of it: its
owner says what is worth being read, and takes the pieces. Invariant: the pieces that are taken
follow one another; if one cannot be read, none comes after it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeAlias

import mlx.core as mx
import numpy as np

from .entry import Entry
from .folder import Folder
from .piece import Piece
from .tree import TokenIds

AHEAD = 64 << 20  # bytes that were read and not taken, and one piece more
_WEIGHT = 0.25  # of the newest in a running mean
_DOUBT = 0.9  # of what reading is thought to take is left after something was refused for it
logger = logging.getLogger(__name__)

Worth: TypeAlias = Callable[[list[Entry]], list[Entry]]
"""Which of these to read: the first ones, all of them, or none."""


class ReadCost:
    """The seconds that reading takes a byte, the opening of files included; learned.

    At first nothing. What was ``refused`` for it is tried again sooner or later, as the disk may
    have been busy. Threads may share it, as no figure is exact.
    """

    __slots__ = ("_bytes", "_seconds", "refused")

    def __init__(self) -> None:
        self._seconds = self._bytes = 0.0
        self.refused = 0

    def allows(self, nbytes: int, seconds: float) -> bool:
        """Whether reading so much takes less than so many seconds."""
        if not self._bytes or nbytes * self._seconds / self._bytes < seconds:
            return True
        self.refused += 1
        self._seconds *= _DOUBT
        return False

    def saw(self, nbytes: int, seconds: float) -> None:
        self._seconds += seconds - _WEIGHT * self._seconds
        self._bytes += nbytes - _WEIGHT * self._bytes


class Fetch:
    """See the module. ``ids``: the prompt; of them, ``held`` are in memory already.

    ``in_parts``: whether the first pieces are of use without the last one. ``goal``: up to how many
    tokens it reads, once that is known. ``count``: how many pieces it has read.
    """

    def __init__(
        self,
        folder: Folder,
        ids: TokenIds,
        held: int,
        *,
        in_parts: bool,
        worth: Worth,
        cost: ReadCost,
        now: Callable[[], float],
    ) -> None:
        self.ids = ids
        self._folder = folder
        self._held = held
        self._in_parts = in_parts
        self._worth = worth
        self._cost = cost
        self._now = now
        self._moved = threading.Condition()
        self._pieces: list[Piece] = []
        self._bytes = 0  # of these
        self._wanted = 0  # up to how many tokens somebody waits for pieces
        self._whole = self._ends = self._cancelled = False
        self.count = 0
        self.goal: int | None = None
        self._thread = threading.Thread(target=self._run, name="prefix cache reader", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come than is there now."""
        return self._ends or self._cancelled

    @property
    def nbytes(self) -> int:
        """The bytes of the pieces that have come and were not taken."""
        return self._bytes

    @property
    def reached(self) -> int:
        """Up to how many tokens there are pieces to take; 0 if there are none."""
        pieces = self._pieces
        return pieces[-1].stop if pieces and (self._in_parts or self._whole) else 0

    def wait(self, timeout: float | None = None) -> None:
        """Wait until no more will come, or not before some of it was taken."""
        with self._moved:
            self._moved.wait_for(lambda: self._bytes >= AHEAD or self.is_over, timeout)

    def take(self, stop: int) -> list[Piece]:
        """The pieces up to ``stop`` tokens that were not taken before; waits for them."""
        with self._moved:
            self._wanted = stop
            self._moved.notify_all()
            self._moved.wait_for(lambda: self.reached >= stop or self.is_over)
            self._wanted = 0
            if not self.reached:
                return []
            taken = [piece for piece in self._pieces if piece.stop <= stop]
            del self._pieces[: len(taken)]
            self._bytes -= sum(piece.nbytes for piece in taken)
            self._moved.notify_all()
            return taken

    def cancel(self) -> None:
        """Read nothing more; what was read and not taken is dropped."""
        with self._moved:
            self._cancelled = True
            self._pieces.clear()
            self._bytes = 0
            self._moved.notify_all()

    def leads_to(self, ids: TokenIds) -> bool:
        """Whether these are the first of its tokens, and it was not cancelled."""
        return not self._cancelled and np.array_equal(self.ids[: len(ids)], ids)

    def is_running(self, timeout: float = 0.0) -> bool:
        """Whether its thread does not end within so many seconds."""
        self._thread.join(timeout)
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._whole = self._read()
        except Exception as error:
            logger.warning("a prefix could not be read from the disk: %s", error)
        finally:
            mx.clear_streams()
            with self._moved:
                self._ends = True
                self._moved.notify_all()

    def _read(self) -> bool:
        found = [each for each in self._folder.find(self.ids) if each.stop > self._held]
        if not found or not (found := self._worth(found)):
            return False
        self.goal = found[-1].stop
        for entry in found:
            started = self._now()
            piece = self._folder.read(entry)
            if piece is None:
                return False
            self._cost.saw(piece.nbytes, self._now() - started)
            with self._moved:
                if self._cancelled:
                    return False
                self._pieces.append(piece)
                self.count += 1
                self._bytes += piece.nbytes
                self._moved.notify_all()
                if self._in_parts:
                    self._moved.wait_for(self._goes_on)
        return True

    def _goes_on(self) -> bool:
        """Whether to read the next piece, or to see that none is wanted any more."""
        return self._bytes < AHEAD or self.reached < self._wanted or self._cancelled
