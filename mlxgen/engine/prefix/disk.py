"""Blocks in a folder: bounded, shared by processes, and safe to lose at any moment.

Owns the files of the folder: which there are, when each was last used, and which go when there are
too many bytes. Must never know which blocks memory holds, or when one is worth being read.

A file is a block (see ``block_file``), named by its key and what is needed to find it, so a listing
of the folder is its index. There is no other file, and nothing to repair: a block is written under
another name and then renamed, and a broken one is removed when it is read. Nothing but files with
names of blocks, and parts that some process left, is ever removed or counted. One process writes at
a time: it locks the folder, lists it again if another one has changed it, and makes room before it
writes.

The time of a file's modification is that of its last use, for every process that uses the folder; a
time in the future, from before a clock was set back, becomes that of the next listing. A block is
of no use without those before it, so these are always as recent, and of blocks that were used at
the same time the last one goes first.

Any thread may call it, and calls may wait for the disk.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...errors import LoadError, OptionError
from ...loading.memory import in_words
from ...workers import workers
from . import block_file
from .block import Block, TokenIds
from .block_file import Layout

logger = logging.getLogger(__name__)

_NAME = re.compile(
    r"([0-9a-f]{40})\.([0-9a-f]{40})\.([0-9]{1,12})\.([0-9]{1,12})\.(kv|state)\.safetensors"
)
_PART = re.compile(r"\.[0-9a-f]{16}" + re.escape(block_file.PART))
_ABANDONED = 600.0  # seconds after which nobody writes a part any more
_RESCAN = 5.0  # seconds between two listings of the folder, at least
_SHARE = 100  # and so many times what a listing takes
_RECENT = 10.0  # seconds for which a use need not be noted again
_PAUSE = 60.0  # seconds without writing after a write that failed
_DOUBT = 0.9  # of what reading is thought to take is left after something was refused for it
_WEIGHT = 0.25  # of the newest in a running mean
_AHEAD = 60 * 10**9  # nanoseconds by which the clocks of machines may differ
_TICK = 50 * 10**6  # nanoseconds in which two changes may have the same time
_HEADER, _ENTRY = 3072, 256  # bytes of a file beside its arrays, and for each of them, about
_SPARE = 32  # evict this part of the limit more than has to go, so that few writes have to


class DiskFigures(NamedTuple):
    """What is on disk, and what has been done there since that was made."""

    disk_bytes: int
    disk_limit: int
    pieces_written: int
    restored_tokens: int
    restores_refused: int


NO_DISK = DiskFigures(0, 0, 0, 0, 0)


@dataclass(slots=True, eq=False)
class File:
    """A block on disk, as its name tells; ``tokens``: if somebody has read them. ``used``: when, in
    nanoseconds."""

    key: str
    parent: str
    start: int
    count: int
    has_state: bool
    nbytes: int
    used: int
    tokens: TokenIds | None = None

    @classmethod
    def of(cls, block: Block, nbytes: int, used: int) -> File:
        state, tokens = block.snapshot is not None, block.tokens
        return cls(block.key, block.parent, block.start, len(tokens), state, nbytes, used, tokens)

    @classmethod
    def listed(cls, name: str, stat: os.stat_result) -> File | None:
        """What a name says; ``None`` if it is not that of a block."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        key, parent, start, count, kind = match.groups()
        state, used = kind == "state", stat.st_mtime_ns
        return cls(key, parent, int(start), int(count), state, stat.st_size, used)

    @property
    def stop(self) -> int:
        return self.start + self.count

    @property
    def name(self) -> str:
        kind = "state" if self.has_state else "kv"
        return f"{self.key}.{self.parent}.{self.start}.{self.count}.{kind}.safetensors"


class Disk:
    """See the module. ``layout`` tells the files of the model from those of others.

    ``written``: how many blocks were written. ``restored``: how many tokens were read. ``refused``:
    how often reading was thought to take too long. Raises ``OptionError`` for ``cache_dir`` if the
    folder cannot be read, or made.
    """

    def __init__(self, path: Path, max_bytes: int, layout: Layout) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.layout = layout
        self.written = self.restored = self.refused = 0
        self._seconds = self._bytes = 0.0  # of reading: running sums
        self._lock = threading.RLock()  # for what follows
        self._files: dict[str, File] = {}
        self._below: dict[str, dict[str, File]] = defaultdict(dict)  # by the key of the parent
        self._nbytes = 0
        self._missing: set[str] = set()
        self._scan_at = self._paused = -float("inf")
        self._seen = 0  # when the folder had changed last, as far as is known here
        self._warned: set[str] = set()
        try:
            self._scan()
            self._make_room(0)
        except OSError as error:
            raise OptionError(
                "cache_dir", f"{path} cannot be read: {error.strerror}; pass another path"
            ) from error

    def __str__(self) -> str:
        held, limit = in_words(self._nbytes), in_words(self.max_bytes)
        return f"{self.path} holds {held} of at most {limit}"

    @property
    def nbytes(self) -> int:
        """The bytes of all files that are known, of other models as well."""
        return self._nbytes

    @property
    def figures(self) -> DiskFigures:
        """What is there, and what was done here."""
        return DiskFigures(self._nbytes, self.max_bytes, self.written, self.restored, self.refused)

    # ---- what there is ---------------------------------------------------------------------

    def get(self, key: str) -> File | None:
        """The file of a block, if there is one to be used."""
        with self._lock:
            return None if key in self._missing else self._files.get(key)

    def below(self, parent: str) -> list[File]:
        """The files of the blocks that follow a key, what was used last first."""
        with self._lock:
            files = self._below.get(parent, {}).values()
            found = [file for file in files if file.key not in self._missing]
        return sorted(found, key=lambda file: -file.used)

    def refuse(self, key: str) -> None:
        """Give a block no more until it is written again."""
        with self._lock:
            self._missing.add(key)

    def refresh(self) -> None:
        """Have the folder listed again, in another thread, if another process may have changed
        it."""
        with self._lock, suppress(OSError):
            if time.monotonic() >= self._scan_at:
                self._scan_at = time.monotonic() + _RESCAN
                if self._changed_at() != self._seen:
                    workers().start(self._scan_quietly, "prefix folder")

    def tokens_of(self, file: File) -> TokenIds | None:
        """The tokens of a block; ``None`` if its file is gone or broken."""
        if file.tokens is None:
            try:
                file.tokens = block_file.read_tokens(self.path / file.name)
            except (OSError, LoadError) as error:
                self._lose(file, error)
        return file.tokens

    def touch(self, key: str) -> None:
        """Note that a block and all before it were used now, unless this was noted a moment ago."""
        with self._lock:
            now, file = time.time_ns(), self._files.get(key)
            if file is None or abs(now - file.used) < _RECENT * 1e9:
                return
            while file is not None:
                with suppress(OSError):  # it is gone, or the folder cannot be written
                    os.utime(self.path / file.name, ns=(now, now))
                file.used = now
                file = self._files.get(file.parent)

    # ---- reading and writing ---------------------------------------------------------------

    def pays(self, nbytes: int, seconds: float) -> bool:
        """Whether reading so much takes less than so many seconds. What was refused is tried again
        sooner or later, as the disk may have been busy."""
        if not self._bytes or nbytes * self._seconds / self._bytes < seconds:
            return True
        self.refused += 1
        self._seconds *= _DOUBT
        return False

    def read(self, key: str, has_state: bool = False) -> Block:
        """The block of a key, with its snapshot if it ``has_state``; raises ``LoadError`` if it is
        not there or broken."""
        file, started = self.get(key), time.monotonic()
        if file is None or file.has_state < has_state:
            raise LoadError("a part of this prefix is on no disk here")
        try:
            block = block_file.read(self.path / file.name, self.layout)
            held = (block.parent, block.start, block.count, block.snapshot is not None)
            if block.key != key or held != (file.parent, file.start, file.count, file.has_state):
                path = self.path / file.name
                raise LoadError(f"{path} does not hold the tokens that its name stands for")
        except (OSError, LoadError) as error:
            self._lose(file, error)
            raise LoadError(f"{file.name} cannot be read") from error
        self.restored += block.count
        self._seconds += time.monotonic() - started - _WEIGHT * self._seconds
        self._bytes += block.nbytes - _WEIGHT * self._bytes
        return block

    def write(self, block: Block) -> bool:
        """Write a block, whose arrays have to be computed, unless it is there; returns whether it
        is there now.

        It is not if there is no room beside what was used later, if the block before it is not
        there, or while nothing can be written.
        """
        if time.monotonic() < self._paused:
            return False
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # it may have been removed
            with self._alone():
                with self._lock:
                    self.touch(block.parent)
                    self._missing.discard(block.key)
                    old, before = self._files.get(block.key), self._files.get(block.parent)
                    if old is not None and old.has_state >= block.has_state:
                        return True
                    if block.start and before is None:
                        return False
                    used = time.time_ns() if before is None else before.used
                    file = File.of(block, 0, used)
                    nbytes = block.nbytes + _HEADER + _ENTRY * len(block.arrays())
                    if not self._make_room(nbytes, file):
                        return False
                path, layout = self.path / file.name, self.layout
                file.nbytes = block_file.write(path, block, layout, mode=0o600, modified=used)
                with self._lock:
                    self._warned.discard("writing")
                    self.written += 1
                    self._add(file)
                    self._make_room(0)
                    self._seen = self._changed_at()
                    return block.key in self._files
        except OSError as error:
            with self._lock:
                self._paused = time.monotonic() + _PAUSE
                self._warn(
                    "writing",
                    f"cannot write to {self.path}: {error.strerror}; what is there is still read,"
                    f" and writing is tried again every {_PAUSE:.0f} seconds",
                )
            return False

    def remove(self, key: str) -> None:
        """Remove a block that is of no use any more."""
        with self._lock:
            if (file := self._files.get(key)) is not None:
                self._forget(file)
                self._unlink(file.name)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A context in which no other process writes, and what others have written is known."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            with suppress(OSError):  # some file systems cannot lock
                fcntl.flock(folder, fcntl.LOCK_EX)
            changed = self._changed_at()
            if changed != self._seen or time.time_ns() - changed < _TICK:
                self._scan()
            yield
        finally:
            os.close(folder)

    def _changed_at(self) -> int:
        """When a file last came to the folder, or went."""
        return self.path.stat().st_mtime_ns

    def _lose(self, file: File, error: Exception) -> None:
        """A file cannot be read: if it is there, it is broken, and removed."""
        with self._lock:
            if self._files.get(file.key) is file:
                self._forget(file)
            if isinstance(error, LoadError):
                reason, _, _ = str(error).partition("; ")  # what follows is advice
                self._warn("broken", f"{reason}; it is removed, and so will be any other like it")
                self._unlink(file.name)

    def _make_room(self, nbytes: int, before: File | None = None) -> bool:
        """Remove files, what was used least recently first, until there is room for so many bytes;
        whether there is. ``before``: only those that go before this one."""
        rank = None if before is None else _rank(before)
        if self._nbytes + nbytes > self.max_bytes >= nbytes:
            limit = self.max_bytes - nbytes
            for file in sorted(self._files.values(), key=_rank):
                if self._nbytes <= limit - limit // _SPARE or (rank and _rank(file) >= rank):
                    break
                self._forget(file)
                self._unlink(file.name)
        return self._nbytes + nbytes <= self.max_bytes

    # ---- the listing -----------------------------------------------------------------------

    def _scan_quietly(self) -> None:
        with suppress(OSError):
            self._scan()

    def _scan(self) -> None:
        started, today = time.monotonic(), time.time_ns()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen, found = self._changed_at(), list(_listing(self.path))
        with self._lock:
            old, self._files = self._files, {}
            self._below.clear()
            self._nbytes = 0
            for name, stat in found:
                file = File.listed(name, stat)
                if file is not None:
                    if file.used > today + _AHEAD:
                        file.used = today
                        with suppress(OSError):
                            os.utime(self.path / name, ns=(today, today))
                    if (known := old.get(file.key)) is not None:
                        file.tokens = known.tokens
                    self._add(file)
                elif _PART.fullmatch(name) and abs(today - stat.st_mtime_ns) > _ABANDONED * 1e9:
                    self._unlink(name)
            self._seen = seen
            now = time.monotonic()
            self._scan_at = now + max(_RESCAN, _SHARE * (now - started))

    def _add(self, file: File) -> None:
        """Note a file. Of two with the same key, the one with the state holds all of the other."""
        old = self._files.get(file.key)
        if old is not None:
            self._forget(old)
            if old.name != file.name:
                old, file = (file, old) if old.has_state else (old, file)
                self._unlink(old.name)
        self._files[file.key] = self._below[file.parent][file.key] = file
        self._nbytes += file.nbytes

    def _forget(self, file: File) -> None:
        del self._files[file.key], self._below[file.parent][file.key]
        self._nbytes -= file.nbytes

    def _unlink(self, name: str) -> None:
        with suppress(OSError):  # another process may have removed it
            (self.path / name).unlink()

    def _warn(self, about: str, message: str) -> None:
        """Say it once, however often it happens."""
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(message)


def _rank(file: File) -> tuple[int, int]:
    """The smallest one goes first."""
    return file.used, -file.start


def _listing(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The names of all regular files in a folder, with what is known of each."""
    with os.scandir(path) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # removed a moment ago
                if entry.is_file(follow_symlinks=False):
                    yield entry.name, entry.stat(follow_symlinks=False)
