"""What a folder has of a prompt, read ahead in a thread of its own.

Owns the thread and what it has read. Must never know why it is wanted, or what becomes of it: its
owner says what is worth being read, and takes the pieces. Invariant: the pieces that are taken
follow one another; if one cannot be read, none comes after it.

If several machines have parts of a model, each reads its own. Then one of them says up to where,
and takes no more than all of them have read (see ``shared_fetch``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from ...workers import workers
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


class Report(NamedTuple):
    """How far a ``Fetch`` has come. ``ends``: after how many tokens a sequence could go on from
    what was found, when that has become known."""

    ends: tuple[int, ...] | None = None
    came: int = 0
    reached: int = 0
    is_over: bool = False


class Fetching(Protocol):
    """What the owner of a fetch sees of it; see ``Fetch``."""

    @property
    def goal(self) -> int | None: ...
    @property
    def came(self) -> int: ...
    @property
    def reached(self) -> int: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    def wait(self, timeout: float | None = None) -> None: ...


class Fetch:
    """See the module. ``ids``: the prompt; of them, ``held`` are in memory already.

    ``in_parts``: whether the first pieces are of use without the last one. ``worth``: which of what
    was found is read; with ``None`` that waits for ``aim``, and ``moved`` is told how it goes on.
    ``goal``: up to how many tokens it reads, once that is known. ``came``: how many pieces it has
    read.
    """

    def __init__(
        self,
        folder: Folder,
        ids: TokenIds,
        held: int,
        *,
        in_parts: bool,
        worth: Worth | None,
        cost: ReadCost,
        now: Callable[[], float],
        moved: Callable[[Report], object] = lambda report: None,
    ) -> None:
        self.ids = ids
        self._folder = folder
        self._held = held
        self._in_parts = in_parts
        self._worth = worth
        self._cost = cost
        self._now = now
        self._tell = moved
        self._moved = threading.Condition()
        self._pieces: list[Piece] = []
        self._bytes = 0  # of these
        self._wanted = 0  # up to how many tokens somebody waits for pieces
        self._aim: int | None = None
        self._whole = self._ends = self._cancelled = False
        self.came = self._reached = 0
        self.goal: int | None = None
        self._work = workers().start(self._run, "prefix cache reader")

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come than is there now."""
        return self._ends or self._cancelled

    @property
    def _report(self) -> Report:
        return Report(None, self.came, self.reached, self.is_over)

    @property
    def nbytes(self) -> int:
        """The bytes of the pieces that have come and were not taken."""
        return self._bytes

    @property
    def reached(self) -> int:
        """Up to how many tokens there are pieces to take, or there were; 0 if there are none."""
        return self._reached if self._in_parts or self._whole else 0

    def aim(self, stop: int) -> None:
        """Read up to so many tokens, which must be one of the ends that were found."""
        with self._moved:
            self._aim = stop
            self._moved.notify_all()

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

    def is_running(self, timeout: float = 0.0) -> bool:
        """Whether its thread does not end within so many seconds."""
        return not self._work.wait(timeout)

    def _run(self) -> None:
        try:
            self._whole = self._read()
        except Exception as error:
            logger.warning("a prefix could not be read from the disk: %s", error)
        finally:
            with self._moved:
                self._ends = True
                self._moved.notify_all()
            self._tell(self._report)

    def _chosen(self) -> list[Entry]:
        """What to read."""
        if self._worth is not None:
            found = [each for each in self._folder.find(self.ids) if each.stop > self._held]
            return self._worth(found) if found else []
        ends = [end for end in self._folder.ends(self.ids) if end > self._held]
        self._tell(Report(tuple(ends)))
        with self._moved:
            self._moved.wait_for(lambda: self._aim is not None or self._cancelled)
        found = self._folder.find(self.ids, self._aim or 0)
        is_there = bool(found) and found[-1].stop == self._aim  # it may have been removed
        return [each for each in found if each.stop > self._held] if is_there else []

    def _read(self) -> bool:
        if not (found := self._chosen()):
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
                self.came += 1
                self._reached = piece.stop
                self._bytes += piece.nbytes
                self._moved.notify_all()
            self._tell(self._report)
            if self._in_parts:
                with self._moved:
                    self._moved.wait_for(self._goes_on)
        return True

    def _goes_on(self) -> bool:
        """Whether to read the next piece, or to see that none is wanted any more."""
        return self._bytes < AHEAD or self.reached < self._wanted or self._cancelled
