"""Blocks in a folder: bounded, shared by processes, and safe to lose at any moment.

Owns the files of the folder, when each was last used, which are removed when there are too many
bytes, and the thread that writes them. Must never know when a block is worth reading.

A file is a block (see ``block_file``), named by its key and what is needed to find it, so a listing
of the folder is its index. There is no other file, and nothing to repair: a block is written under
another name and then renamed, and a broken one is removed when it is read. Only files named as
blocks, and parts that a process has left, are ever removed; only the former are counted. One
process writes at a time: it locks the folder, lists it again if another one has changed it, and
makes room before it writes.

A file's modification time is that of its last use, for every process that uses the folder; a time
in the future, from before a clock was set back, counts as that of the listing. A block is of no use
without those before it, so these are always as recent, and of blocks that were used at the same
time the last one goes first.

What is in memory is written once the device ``rests``, and all of it on a ``flush``, the most
recently used first. What memory evicts before that is not written.

Any thread may call it, and calls may wait for the disk.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import LoadError, OptionError
from ...loading.memory import in_words
from ...workers import Work, workers
from . import block_file
from .block import Block, File, TokenIds, key_of
from .block_file import Layout
from .blocks import Blocks

logger = logging.getLogger(__name__)

_NAME = re.compile(
    r"([0-9a-f]{40})\.([0-9a-f]{40})\.([0-9]{1,12})\.([0-9]{1,12})\.(kv|state)\.safetensors"
)
_PART = re.compile(r"\.[0-9a-f]{16}" + re.escape(block_file.PART))
_ABANDONED = 600.0  # seconds after which a part counts as abandoned
_RESCAN = 5.0  # the least seconds between two listings of the folder
_SHARE = 100  # and the least multiple of the time that a listing takes
_RECENT = 10.0  # seconds for which a use need not be noted again
_PAUSE = 60.0  # seconds without writing after a write that failed
_HEADER, _ENTRY = 3072, 256  # bytes of a file besides its arrays, and for each array, about
_LAST_FILE = 5.0  # seconds to finish the file that is being written on close


class DiskFigures(NamedTuple):
    """What is on disk, and what this ``Disk`` has done there."""

    disk_bytes: int
    disk_limit: int
    pieces_written: int
    restored_tokens: int


NO_DISK = DiskFigures(0, 0, 0, 0)


class Disk:
    """See the module. ``layout`` tells the files of the model from those of others; ``blocks`` are
    all known ones, those in memory as well.

    Raises ``OptionError`` for ``cache_dir`` if the folder cannot be read or made.
    """

    def __init__(self, path: Path, max_bytes: int, layout: Layout) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.layout = layout
        self.blocks = Blocks(layout.make, layout.root)
        self.rests = False  # the device has nothing to do
        self._written = self._restored = 0
        self._scan_at = self._paused = -float("inf")
        self._seen = 0  # when the folder last changed, as far as known here
        self._warned: set[str] = set()
        self._changed = threading.Condition(self.blocks.lock)
        self._work: Work | None = None
        self._writes = self._flushes = self._closed = False
        self._todo: deque[str] = deque()
        try:
            self._scan()
            self._make_room(0)
        except OSError as error:
            raise OptionError(
                "cache_dir", f"{path} cannot be read: {error.strerror}; pass another path"
            ) from error

    def __str__(self) -> str:
        held, limit = in_words(self.blocks.disk_bytes), in_words(self.max_bytes)
        return f"{self.path} holds {held} of at most {limit}"

    @property
    def figures(self) -> DiskFigures:
        """What is there, blocks of other models included, and what was done here."""
        return DiskFigures(self.blocks.disk_bytes, self.max_bytes, self._written, self._restored)

    # ---- reading ---------------------------------------------------------------------------

    def tokens_of(self, block: Block) -> TokenIds | None:
        """The tokens of a block on disk; None if its file is gone, broken or falsely named."""
        path = self._path_of(block)
        try:
            tokens = block_file.read_tokens(path)
            if key_of(block.parent, tokens, block.has_state) != block.key:
                raise LoadError(f"{path} does not hold the tokens that its name stands for")
            return tokens
        except (OSError, LoadError) as error:
            self._lose(block, error)
            return None

    def read(self, block: Block) -> Block:
        """A block with its KV; raises ``LoadError`` if its file is missing or broken."""
        if block.file is None:
            raise LoadError("a part of this prefix is on no disk here")
        path = self._path_of(block)
        try:
            found = block_file.read(path, self.layout)
            if (found.key, found.start) != (block.key, block.start):
                raise LoadError(f"{path} does not hold the tokens that its name stands for")
        except (OSError, LoadError) as error:
            self._lose(block, error)
            raise LoadError(f"{path.name} cannot be read") from error
        self._restored += found.count
        return found

    def touch(self, block: Block | None) -> None:
        """Note that a block and all before it were used now, unless that was noted a moment ago."""
        now = time.time_ns()
        if block is None or block.file is None or abs(now - block.file.used) < _RECENT * 1e9:
            return
        while block is not None and block.file is not None:
            with suppress(OSError):  # it is gone, or the folder cannot be written
                os.utime(self._path_of(block), ns=(now, now))
            self.blocks.put(block, block.file._replace(used=now))
            block = self.blocks.get(block.parent, disk=True)

    def refresh(self) -> None:
        """List the folder again now and then, if another process has changed it."""
        with suppress(OSError):
            if time.monotonic() >= self._scan_at and self._changed_at() != self._seen:
                self._scan()

    # ---- the thread that writes ------------------------------------------------------------

    def rest(self) -> None:
        """The device has nothing to do: begin to write what is in memory. Call it with the lock."""
        self.rests = True
        self._begin()

    def flush(self, timeout: float | None) -> bool:
        """Write all that is in memory; returns whether that was done within ``timeout`` seconds."""
        with self._changed:
            self._flushes = True
            self._begin()
            return self._changed.wait_for(lambda: not self._writes, timeout) and not self._closed

    def close(self, timeout: float | None) -> bool:
        """Flush, and write nothing from then on."""
        done = self.flush(timeout)
        with self._changed:
            self._closed, work = True, self._work
        if work is not None:
            work.wait(_LAST_FILE)
        return done

    def _begin(self) -> None:
        # The most recently used comes first, so none before those that lead to it
        self._todo = deque([block.key for block in reversed(self.blocks)])
        if not self._writes:
            self._writes = True
            self._work = workers().start(self._run, "prefix cache writer")

    def _run(self) -> None:
        while (block := self._next()) is not None:
            try:
                self.write(block)
            except Exception:
                logger.warning("a prefix could not be written to the disk", exc_info=True)
            del block  # do not keep it alive while waiting for the lock

    def _next(self) -> Block | None:
        """The next block to write; if there is none, writing has ended."""
        with self._changed:
            while self._todo and (self._flushes or self.rests) and not self._closed:
                block = self.blocks.get(self._todo.popleft())
                if block is not None and block.settled and not block.is_filed:
                    return block
            self._writes = self._flushes = False
            self._changed.notify_all()
            return None

    def write(self, block: Block) -> None:
        """Write a block, whose arrays must be computed, unless it is there, there is no room
        besides blocks used later, the block before it is not there, or writing has just failed."""
        if time.monotonic() < self._paused:
            return
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # it may have been removed
            with self._alone():
                with self.blocks.lock:
                    before = self.blocks.get(block.parent, disk=True)
                    self.touch(before)
                    own = self.blocks.get(block.key, disk=True)
                    if own is not None and own.file is not None:
                        self.blocks.put(own, own.file._replace(refused=False))
                        return
                    lead = None if before is None else before.file
                    used = time.time_ns() if lead is None else lead.used
                    nbytes = block.nbytes + _HEADER + _ENTRY * len(block.arrays())
                    if block.start and lead is None:
                        return
                    if not self._make_room(nbytes, (used, -block.start)):
                        return
                path, layout = self._path_of(block), self.layout
                nbytes = block_file.write(path, block, layout, mode=0o600, modified=used)
                with self.blocks.lock:
                    self._warned.discard("writing")
                    self._written += 1
                    self.blocks.put(block, File(nbytes, used))
                    for each in self.blocks.beginnings(block, disk=True):
                        self._remove(each)
                    self._make_room(0)
                    self._seen = self._changed_at()
        except OSError as error:
            with self.blocks.lock:
                self._paused = time.monotonic() + _PAUSE
                self._warn(
                    "writing",
                    f"cannot write to {self.path}: {error.strerror}; what is there is still read,"
                    f" and writing is tried again every {_PAUSE:.0f} seconds",
                )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A context in which no other process writes, and all that others have written is known."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            with suppress(OSError):  # some file systems cannot lock
                fcntl.flock(folder, fcntl.LOCK_EX)
            if self._changed_at() != self._seen:
                self._scan()
            yield
        finally:
            os.close(folder)

    # ---- the files -------------------------------------------------------------------------

    def _path_of(self, block: Block) -> Path:
        kind = "state" if block.has_state else "kv"
        place = f"{block.parent}.{block.start}.{block.count}.{kind}"
        return self.path / f"{block.key}.{place}.safetensors"

    def _changed_at(self) -> int:
        """When a file was last added to the folder, or removed."""
        return self.path.stat().st_mtime_ns

    def _remove(self, block: Block) -> None:
        """Remove the file of a block, if it has one."""
        if block.file is not None:
            with suppress(OSError):  # another process may have removed it
                self._path_of(block).unlink()
            self.blocks.put(block, None)

    def _lose(self, block: Block, error: Exception) -> None:
        """Note that a file cannot be read: if it is there, it is broken, and removed."""
        with self.blocks.lock:
            if isinstance(error, LoadError):
                reason, _, _ = str(error).partition("; ")  # what follows is advice
                self._warn("broken", f"{reason}; it is removed, and so will be any other like it")
                self._remove(block)
            elif block.file is not None:
                self.blocks.put(block, None)

    def _make_room(self, nbytes: int, rank: tuple[int, int] | None = None) -> bool:
        """Remove files, the least recently used first, until there is room for this many bytes;
        returns whether there is. With ``rank``, remove only those that rank before it."""
        if self.blocks.disk_bytes + nbytes > self.max_bytes >= nbytes:
            for block in sorted(self.blocks.on_disk(), key=_rank):
                done = self.blocks.disk_bytes + nbytes <= self.max_bytes
                if done or (rank is not None and _rank(block) >= rank):
                    break
                self._remove(block)
        return self.blocks.disk_bytes + nbytes <= self.max_bytes

    def _scan(self) -> None:
        """List the folder."""
        started, today = time.monotonic(), time.time_ns()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen, found = self._changed_at(), list(_listing(self.path))
        with self.blocks.lock:
            gone = {block.key: block for block in self.blocks.on_disk()}
            for name, stat in found:
                if (match := _NAME.fullmatch(name)) is not None:
                    key, parent, start, count, kind = match.groups()
                    block = gone.pop(key, None)
                    block = block or Block(key, parent, int(start), int(count), kind == "state")
                    self.blocks.put(block, File(stat.st_size, min(stat.st_mtime_ns, today)))
                elif _PART.fullmatch(name) and abs(today - stat.st_mtime_ns) > _ABANDONED * 1e9:
                    with suppress(OSError):
                        (self.path / name).unlink()
            for block in gone.values():
                self.blocks.put(block, None)
            self._seen = seen
            now = time.monotonic()
            self._scan_at = now + max(_RESCAN, _SHARE * (now - started))

    def _warn(self, about: str, message: str) -> None:
        """Log a warning, once for each subject."""
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(message)


def _rank(block: Block) -> tuple[int, int]:
    """The block with the smallest rank goes first."""
    assert block.file is not None
    return block.file.used, -block.start


def _listing(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The names of all regular files in a folder, with what is known of each."""
    with os.scandir(path) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # removed a moment ago
                if entry.is_file(follow_symlinks=False):
                    yield entry.name, entry.stat(follow_symlinks=False)
