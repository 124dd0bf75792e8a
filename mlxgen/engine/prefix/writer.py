"""The thread that writes blocks to a folder.

Owns what is written when. Must never know what a file looks like. Written is what was evicted
before it could be, as long as not too much of it waits; what is held once the device ``rests``; and
all of it on a ``flush``. What was used last comes first. One thread writes until nothing is left.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

import mlx.core as mx

from ...workers import Work, workers
from .block import Block
from .blocks import Blocks
from .disk import Disk

logger = logging.getLogger(__name__)

RESCUED = 256 << 20  # bytes that may wait to be written after they were evicted
_LAST_FILE = 5.0  # seconds for what is being written when it is closed


class Writer:
    """See the module. ``lock`` is that of ``blocks``. ``rests``: the device has nothing to do."""

    def __init__(self, blocks: Blocks, disk: Disk, lock: threading.RLock) -> None:
        self.rests = False
        self._blocks = blocks
        self._disk = disk
        self._changed = threading.Condition(lock)
        self._work: Work | None = None
        self._writes = self._flushes = self._closed = False
        self._rescued: deque[Block] = deque()
        self._todo: deque[str] = deque()

    def wake(self) -> None:
        """Have written what is to be written now; hold the lock."""
        if not self._writes:
            self._writes = True
            self._work = workers().start(self._run, "prefix cache writer")

    def flush(self) -> None:
        """Begin to write all that is held."""
        with self._changed:
            for block in self._blocks:  # the folder may have dropped it
                file = self._disk.get(block.key)
                block.saved = file is not None and file.has_state >= block.has_state
            self._flushes = True
            self.wake()

    def wait(self, timeout: float | None) -> bool:
        """Wait until nothing is written; returns whether that was so within ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._writes, timeout) and not self._closed

    def close(self, timeout: float | None) -> bool:
        """Write all that is held, and nothing any more after ``timeout`` seconds; returns what
        ``wait`` does."""
        self.flush()
        done = self.wait(timeout)
        with self._changed:
            self._closed, work = True, self._work
        if work is not None:
            work.wait(_LAST_FILE)
        return done

    def rescue(self, block: Block, most: int) -> None:
        """Have a block written that is about to go, after those that lead to it, unless more than
        so many bytes would wait then; hold the lock."""
        if block.saved or self._closed:
            return
        missing, at = list[Block](), self._blocks.get(block.key)
        while at is not None and not at.saved:
            missing.append(at)
            at = self._blocks.get(at.parent)
        if sum(each.size for each in (*self._rescued, *missing)) > min(RESCUED, most):
            return
        try:
            mx.eval([each.arrays() for each in missing])
        except Exception:  # then it is of no use
            return
        for each in reversed(missing):
            each.saved = True
            self._rescued.append(each)
        self.wake()

    def _run(self) -> None:
        try:
            while (block := self._next()) is not None:
                try:
                    if self._disk.write(block) and block.instead_of:
                        self._disk.remove(block.instead_of)
                except Exception:
                    logger.warning("a prefix could not be written to the disk", exc_info=True)
                del block  # it is not held while the lock is waited for
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        with self._changed:
            self._writes = self._flushes = False
            self._todo.clear()
            self._changed.notify_all()

    def _next(self) -> Block | None:
        """What to write next; if there is nothing, writing has ended."""
        with self._changed:
            if self._rescued and not self._closed:
                return self._rescued.popleft()
            while (self._flushes or self.rests) and not self._closed:
                if not self._todo:  # what was used last first, so none before what leads to it
                    held = reversed(self._blocks)
                    self._todo += [each.key for each in held if each.settled and not each.saved]
                if not self._todo:
                    break
                block = self._blocks.get(self._todo.popleft())
                if block is not None and not block.saved:
                    block.saved = True
                    return block
            self._end()
            return None
