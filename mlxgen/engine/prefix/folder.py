"""Pieces of KV in a folder: bounded, shared by processes, and safe to lose at any moment.

Owns the files of the folder: which there are, when each was last used, and which go when there are
too many bytes. Must never know what keeps pieces in memory, or when it is worth to read one.

A file is a piece (see ``piece``), named by its key and what is needed to find it (see ``entry``),
so a listing of the folder is its index. There is no other file, and nothing to repair: a piece is
written under another name and then renamed, and a broken one is removed when it is read. Nothing
but files with names of pieces, and parts that some process left, is ever removed or counted. One
process writes at a time: it locks the folder, lists it again if another one has changed it, and
makes room before it writes.

The time of a file's modification is that of its last use, for every process that uses the folder; a
time in the future, from before a clock was set back, becomes that of the next listing.
A piece is of no use without those before it, so these are always as recent: a use renews a chain
from its beginning to its end, and of pieces that were used at the same time the last one of the
chain goes first.

Any thread may call it, and every call may wait for the disk. Only the constructor uses the model,
so it belongs in that model's thread. The arrays that are written have to be computed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import compress
from operator import not_
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import LoadError, OptionError
from ...loading.memory import in_words
from ...tokens import Token
from ..kv.layers import CacheFactory, leaves, sliceable
from . import sealed_file
from .entry import CELL, Entry, Name, entries_of, key_of
from .layout import Layout
from .piece import FORMAT, Piece, read, write
from .segments import Segment, Snapshot
from .tree import TokenIds, as_ids

logger = logging.getLogger(__name__)

_PART = re.compile(r"\.[0-9a-f]{16}" + re.escape(sealed_file.PART))
_ABANDONED = 600.0  # seconds after which nobody writes a part any more
_RESCAN = 5.0  # seconds between two listings of the folder, at least
_SHARE = 100  # and so many times what a listing takes
_RECENT = 10.0  # seconds for which a use need not be noted again
_PAUSE = 60.0  # seconds without writing after a write that failed
_LAST = (1 << 63, 0)  # a rank after those of all files
_AHEAD = 60 * 10**9  # nanoseconds by which the clocks of machines may differ
_TICK = 50 * 10**6  # nanoseconds in which two changes may have the same time
_HEADER = 4096  # bytes of a file beside its arrays, about
_SPARE = 32  # evict this part of the limit more than has to go, so that few writes have to


@dataclass(slots=True, eq=False)
class _File:
    name: Name
    nbytes: int
    used: int  # nanoseconds

    @property
    def rank(self) -> tuple[int, int]:
        """The smallest one goes first."""
        return self.used, -self.name.start


class Folder:
    """See the module. ``make`` builds the empty caches of the model, one for each layer.

    Raises ``OptionError`` for ``cache_dir`` if the folder cannot be read, or made.
    """

    def __init__(
        self, path: Path, max_bytes: int, *, make: CacheFactory, model: Any = None
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._layout = Layout(make, model)
        _ = self._layout.forms  # computed here, in the model's thread
        kinds = [sliceable(leaf) for leaf in leaves(make())]
        self._has_segments, self._needs_state = any(kinds), not all(kinds)
        self._root = key_of(repr((FORMAT, CELL, self._layout.kinds, self._layout.digest)))
        self._lock = threading.Lock()  # for what follows
        self._files: dict[str, _File] = {}  # by key
        # How many files have so many tokens after those of a key
        self._counts: dict[str, Counter[int]] = defaultdict(Counter)
        self._nbytes = 0
        self._scan_at = self._paused = -float("inf")
        self._seen = 0  # when the folder had changed last, as far as is known here
        self._warned: set[str] = set()
        try:
            self._scan()
            self._make_room(0, _LAST)
        except OSError as error:
            raise OptionError(
                "cache_dir", f"{path} cannot be read: {error.strerror}; pass another path"
            ) from error

    def __str__(self) -> str:
        held, limit = in_words(self._nbytes), in_words(self._max_bytes)
        return f"{self.path} holds {held} of at most {limit}"

    @property
    def nbytes(self) -> int:
        """The bytes of all files that are known, of other models as well."""
        return self._nbytes

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    # ---- what there is -------------------------------------------------------------------------

    def find(self, ids: Sequence[Token] | TokenIds, most: int | None = None) -> list[Entry]:
        """What to read, in order, for as many of the first ``most`` tokens as possible.

        The last one's ``stop`` is how many these are; it has a state if the model needs one.
        Counts as a use of them.
        """
        wanted = as_ids(ids)[:most]
        with self._lock:
            chain = self._chain(wanted)
            if (not chain or chain[-1].stop < len(wanted)) and self._rescanned():
                chain = self._chain(wanted)
            self._renew(chain)
        return chain

    def ends(self, ids: Sequence[Token] | TokenIds) -> list[int]:
        """After how many of the tokens a sequence can go on from what there is: ``find`` gives as
        many if these are ``most``."""
        with self._lock:
            self._rescanned()
            cells = self._cells(as_ids(ids))
            return sorted(end.stop for _, ends in cells for end in ends)

    def missing(self, ids: Sequence[Token] | TokenIds, *, has_state: bool = False) -> list[Entry]:
        """What to write, in order, so that ``find`` gives all of ``ids``.

        ``has_state``: whether there is a state after the last of them. If there is none and the
        model needs one, these are the pieces that lead to later states. Counts as a use of what
        is there already.
        """
        wanted = as_ids(ids)
        if self._needs_state and not has_state:
            wanted = wanted[: len(wanted) // CELL * CELL if self._has_segments else 0]
        found = [*entries_of(self._root, wanted, has_state=has_state and self._needs_state)]
        if not self._has_segments:
            found = found[-1:]
        with self._lock:
            there = [self._file(entry) is not None for entry in found]
            self._renew([*compress(found, there)])
        return [*compress(found, map(not_, there))]

    # ---- reading and writing -------------------------------------------------------------------

    def read(self, entry: Entry) -> Piece | None:
        """The piece, or ``None`` if it is gone or broken."""
        path = self.path / str(entry.name)
        try:
            piece = read(path, self._layout)
            _check(path, piece, entry)
        except OSError:
            with self._lock:
                self._forget(entry.key)  # until the next listing, if it is still there
        except LoadError as error:
            with self._lock:
                reason, _, _ = str(error).partition("; ")  # what follows is advice
                self._warn("broken", f"{reason}; it is removed, and so will be any other like it")
                self._remove(entry.name)
        else:
            return piece
        return None

    def write(self, entry: Entry, segment: Segment, snapshot: Snapshot | None) -> bool:
        """Write a piece; returns whether it is there now.

        It is not if there is no room beside what was used later, if what it needs before it is
        not there, or while nothing can be written.
        """
        assert segment.count == len(entry.tokens) and (snapshot is not None) == entry.has_state
        piece = Piece(entry.start, entry.tokens, segment, snapshot, entry.parent)
        path = self.path / str(entry.name)
        if time.monotonic() < self._paused:
            return False
        try:
            self._make()  # somebody may have removed it
            with self._alone():
                with self._lock:
                    if self._file(entry) is not None:
                        return True
                    used = self._use_of(entry)
                    rank = (used or 0, -entry.start)
                    if used is None or not self._make_room(piece.nbytes + _HEADER, rank):
                        return False
                size = write(path, piece, self._layout, mode=0o600, modified=used)
                with self._lock:
                    self._warned.discard("writing")
                    self._add(_File(entry.name, size, used))
                    self._make_room(0, _LAST)
                    self._seen = self._changed_at()
                    return self._file(entry) is not None
        except OSError as error:
            with self._lock:
                self._pause(error)
            return False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A context in which no other process writes, and what others have written is known."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            with suppress(OSError):  # some file systems cannot lock
                fcntl.flock(folder, fcntl.LOCK_EX)
            with self._lock:
                changed = self._changed_at()
                if changed != self._seen or time.time_ns() - changed < _TICK:
                    self._scan()
            yield
        finally:
            os.close(folder)

    def _changed_at(self) -> int:
        """When a file last came to the folder, or went."""
        return self.path.stat().st_mtime_ns

    # ---- below, the lock is held ---------------------------------------------------------------

    def _chain(self, ids: TokenIds) -> list[Entry]:
        """The chain of files with as many of the tokens as possible."""
        best = list[Entry]()
        for cells, ends in self._cells(ids):
            if (end := next(ends, None)) is not None:
                best = [*cells, end]
        return best

    def _cells(self, ids: TokenIds) -> Iterator[tuple[list[Entry], Iterator[Entry]]]:
        """For each cell of the tokens, as far as there is one: what leads to it, and the pieces in
        it after which a sequence can go on, the longest first."""
        cells, parent = list[Entry](), self._root
        for start in range(0, len(ids), CELL):
            cell = ids[start : start + CELL]
            yield cells, self._ends(parent, start, cell)
            whole = Entry(parent, start, cell)
            if self._has_segments:
                found = self._there(whole)
                if found is None or len(cell) < CELL:
                    break
                cells.append(found)
            parent = whole.key

    def _ends(self, parent: str, start: int, cell: TokenIds) -> Iterator[Entry]:
        counts = sorted(+self._counts[parent], reverse=True) if parent in self._counts else ()
        for count in counts:
            end = self._there(Entry(parent, start, cell[:count]))
            if end is not None and (end.has_state or not self._needs_state):
                yield end

    def _there(self, entry: Entry) -> Entry | None:
        """An entry as its file has it, if there is one."""
        file = self._file(entry)
        if file is None:
            return None
        return Entry(entry.parent, entry.start, entry.tokens, file.name.has_state, file.nbytes)

    def _file(self, entry: Entry) -> _File | None:
        """A file that holds at least this."""
        file = self._files.get(entry.key)
        if file is None or file.name not in (entry.name, entry.name.with_state()):
            return None
        return file

    def _use_of(self, entry: Entry) -> int | None:
        """When a new piece counts as used: not after what it needs, which must be there."""
        if not entry.start or not self._has_segments:
            return time.time_ns()
        before = self._files.get(entry.parent)
        return None if before is None else before.used

    def _renew(self, chain: Sequence[Entry]) -> None:
        """Note that pieces were used now, unless this was noted a moment ago."""
        now, old = time.time_ns(), list[_File]()
        for entry in reversed(chain):
            file = self._files[entry.key]
            if abs(now - file.used) < _RECENT * 1e9:  # and so were those before it
                now = file.used
                break
            old.append(file)
        for file in reversed(old):
            with suppress(OSError):  # it is gone, or the folder cannot be written
                os.utime(self.path / str(file.name), ns=(now, now))
            file.used = now

    def _make_room(self, nbytes: int, rank: tuple[int, int]) -> bool:
        """Remove files before this rank until there is room for so many bytes; whether there is."""
        if self._nbytes + nbytes > self._max_bytes >= nbytes:
            limit = self._max_bytes - nbytes
            for file in sorted(self._files.values(), key=lambda file: file.rank):
                if self._nbytes <= limit - limit // _SPARE or file.rank >= rank:
                    break
                self._remove(file.name)
        return self._nbytes + nbytes <= self._max_bytes

    # ---- the files -----------------------------------------------------------------------------

    def _rescanned(self) -> bool:
        """List the folder again, if the last time is long enough ago."""
        if time.monotonic() < self._scan_at:
            return False
        with suppress(OSError):
            self._scan()
        return True

    def _scan(self) -> None:
        started, today = time.monotonic(), time.time_ns()
        self._scan_at = started + _RESCAN
        self._make()
        self._seen = self._changed_at()
        found = list(_listing(self.path))
        self._files.clear()
        self._counts.clear()
        self._nbytes = 0
        for text, stat in found:
            name = Name.parsed(text)
            used = stat.st_mtime_ns
            if name is not None:
                if used > today + _AHEAD:
                    used = today
                    with suppress(OSError):
                        os.utime(self.path / text, ns=(today, today))
                self._add(_File(name, stat.st_size, used))
            elif _PART.fullmatch(text) and abs(today - used) > _ABANDONED * 1e9:
                with suppress(OSError):
                    (self.path / text).unlink()
        now = time.monotonic()
        self._scan_at = now + max(_RESCAN, _SHARE * (now - started))

    def _make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _add(self, file: _File) -> None:
        """Note a file. Of two with the same key, the one with the state holds all of the other."""
        old = self._forget(file.name.key)
        if old is not None and old.name != file.name:
            if old.name.has_state:
                old, file = file, old
            with suppress(OSError):
                (self.path / str(old.name)).unlink()
        self._files[file.name.key] = file
        self._counts[file.name.parent][file.name.count] += 1
        self._nbytes += file.nbytes

    def _forget(self, key: str) -> _File | None:
        file = self._files.pop(key, None)
        if file is not None:
            self._nbytes -= file.nbytes
            self._counts[file.name.parent][file.name.count] -= 1
        return file

    def _remove(self, name: Name) -> None:
        self._forget(name.key)
        with suppress(OSError):  # another process may have removed it
            (self.path / str(name)).unlink()

    def _pause(self, error: OSError) -> None:
        self._paused = time.monotonic() + _PAUSE
        self._warn(
            "writing",
            f"cannot write to {self.path}: {error.strerror}; what is there is still read, and"
            f" writing is tried again every {_PAUSE:.0f} seconds",
        )

    def _warn(self, about: str, message: str) -> None:
        """Say it once, however often it happens."""
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(message)


def _listing(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The names of all regular files in a folder, with what is known of each."""
    with os.scandir(path) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # removed a moment ago
                if entry.is_file(follow_symlinks=False):
                    yield entry.name, entry.stat(follow_symlinks=False)


def _check(path: Path, piece: Piece, entry: Entry) -> None:
    """Raise unless a file holds what its name says."""
    held = (piece.parent, piece.start, piece.snapshot is not None)
    same = held == (entry.parent, entry.start, entry.has_state)
    if not same or not np.array_equal(piece.tokens, entry.tokens):
        raise LoadError(f"{path} does not hold the tokens that its name stands for")
