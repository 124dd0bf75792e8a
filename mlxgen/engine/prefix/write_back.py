"""What a prefix cache holds in memory is written to its folder, before it has to go.

Owns what is written when. Must never know what a file looks like (``folder`` does). Written is:

- what would be evicted first, as soon as more than half of what there is room for is held. So room
  is made at once later, by dropping what is on disk;
- what is evicted before that, as long as only so many bytes of it wait. More is lost to the disk,
  and never waited for;
- on a flush, all the rest, what was used last first.

One thread at a time writes until nothing is left to write. The lock of the tree is not held
meanwhile. Only what is known to be computed is written, so that the device is not waited for, and
nothing before what leads to it, so that what is in the folder can be found.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from ...workers import Work, workers
from .entry import CELL
from .folder import Folder
from .segments import Placed, Snapshot, spliced
from .tree import Node, PrefixTree, TokenIds

SHARE = 1 / 2  # of the bytes that there is room for, from which on they are written back
RESCUED = 1 / 16  # of them, that may wait to be written after they were evicted
MOST_RESCUED = 256 << 20  # bytes
LAST_FILE = 5.0  # seconds for what is being written then
logger = logging.getLogger(__name__)


class Job(NamedTuple):
    """What a node holds, to be written; ``ids`` are all tokens up to its end, and its pieces are
    made of what is ``placed`` from the beginning of a cell on.

    ``is_end``: no longer sequence is held that goes on from there.
    """

    node: Node
    ids: TokenIds
    placed: list[Placed]  # no more of what leads to it, as that may be evicted meanwhile
    snapshot: Snapshot | None
    is_end: bool

    @classmethod
    def of(cls, node: Node) -> Job:
        path, first = node.path(), node.start // CELL * CELL
        ids = np.concatenate([each.tokens for each in path])
        placed = [(each.segment, each.start) for each in path if each.depth > first]
        return cls(node, ids, placed, node.snapshot, not node.children)

    @property
    def nbytes(self) -> int:
        return self.placed[-1][0].nbytes + (self.snapshot.nbytes if self.snapshot else 0)

    def write(self, folder: Folder) -> int:
        """Write what the folder does not hold; returns how many pieces that were."""
        whole = self.snapshot is not None or self.is_end
        ids = self.ids if whole else self.ids[: len(self.ids) // CELL * CELL]
        missing = folder.missing(ids, has_state=self.snapshot is not None)
        for count, entry in enumerate(missing):
            if entry.start < self.placed[0][1]:  # the folder has dropped what leads to it
                return count
            piece = spliced(self.placed, entry.start, entry.stop)
            if not folder.write(entry, piece, self.snapshot if entry.has_state else None):
                return count
        return len(missing)


class WriteBack:
    """See the module. ``lock`` is that of the ``tree``: hold it for ``wake`` and ``rescue``.

    ``limit`` says how many bytes the tree may hold, and ``room`` how many there were for it when
    that was last known. ``written``: how many pieces were written.
    """

    def __init__(
        self, tree: PrefixTree, folder: Folder, lock: threading.RLock, limit: Callable[[], int]
    ) -> None:
        self._tree = tree
        self._folder = folder
        self._changed = threading.Condition(lock)
        self._limit = limit
        self.room: float = math.inf
        self._work: Work | None = None
        self._writes = False
        self._rescued: deque[Job] = deque()
        self._bytes = 0  # of these
        self._flushes = False  # until there is nothing left to write
        self.written = 0
        self._closed = False

    def wake(self) -> None:
        """Have written what is to be written now."""
        if not self._writes and (job := self._next()) is not None:
            self._writes = True
            self._work = workers().start(partial(self._run, job), "prefix cache writer")

    def rescue(self, node: Node) -> None:
        """Have a node written that is about to be dropped, with what leads to it, as far as there
        is room for that to wait."""
        room = min(RESCUED * self._limit(), MOST_RESCUED) if not self._closed else 0
        while (job := self._first_unsaved(node)) is not None:
            if self._bytes + job.nbytes > room:
                job.node.saved = False
                break
            self._rescued.append(job)
            self._bytes += job.nbytes
        if self._rescued:
            self.wake()

    def begin_flush(self) -> None:
        """Have all that is held written."""
        with self._changed:
            self._flushes = True
            for node in self._tree.nodes():
                node.saved = False  # the folder may have dropped it
            self.wake()
            self._flushes = self._writes

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is written; returns whether that was so within ``timeout`` seconds."""
        with self._changed:
            done = self._changed.wait_for(lambda: not self._writes, timeout)
            return done and not self._closed

    def close(self, timeout: float | None = None) -> bool:
        """Write all that is held, and nothing any more after that; returns what ``wait`` does."""
        self.begin_flush()
        done = self.wait(timeout)
        with self._changed:
            self._closed = True
            work = self._work
        if work is not None:
            work.wait(LAST_FILE)
        return done

    def _next(self) -> Job | None:
        """What to write now; it counts as written from then on."""
        if self._closed:
            return None
        if self._rescued:
            rescued = self._rescued.popleft()
            self._bytes -= rescued.nbytes
            return rescued
        held = self._tree.nbytes - SHARE * min(self._limit(), self.room)
        if not self._flushes and held <= 0:
            return None
        nodes = self._tree.places()
        for node in reversed(nodes) if self._flushes else nodes:
            if (job := self._first_unsaved(node)) is not None:
                return job
            held -= node.nbytes
            if not self._flushes and held <= 0:
                return None
        return None

    def _first_unsaved(self, node: Node) -> Job | None:
        """The first node on the way to this one that is not on disk, if it can be written."""
        path = node.path() if not node.saved else []
        for each in path:
            if not each.saved:
                first = each.start // CELL * CELL
                if not all(other.computed for other in path if first < other.depth <= each.depth):
                    return None
                each.saved = True
                return Job.of(each)
        return None

    def _run(self, job: Job | None) -> None:
        try:
            while job is not None:
                try:
                    self.written += job.write(self._folder)
                except Exception:
                    logger.warning("a prefix could not be written to the disk", exc_info=True)
                job = None  # not held while the lock is waited for
                with self._changed:
                    self._writes = False  # whatever happens
                    job = self._next()
                    self._writes = job is not None
                    self._flushes = self._flushes and self._writes
        finally:
            with self._changed:
                self._changed.notify_all()
