"""The KV of token sequences that were run before, for sequences that begin with the same tokens.

Owns a tree of what is kept (``tree``), its limit in bytes, and what is evicted when that is
reached. Must never know requests or text: its caller says which tokens a KV holds. Invariants:
``nbytes`` is the sum of the arrays held, and never more than ``max_bytes``; nothing that was
inserted or taken shares a buffer to which either side writes, so the cache and the sequences
cannot disturb each other.

Any thread may call it, as everything held was submitted when it was inserted. What it gives is not
submitted yet, and so belongs to the thread that took it. Nothing here waits for the device: if that
fails, its owner says of which insertions it is not known that they were computed.

How many bytes a call copies:

- ``insert``: what is new, once. A sequence that departs from a kept one inside an edge also
  copies that edge, at most ``block`` tokens.
- ``take``: the KV of the prefix, once, when it is evaluated: its runs are concatenated into
  buffers with room for the rest of the sequence, so neither the prefill of that rest nor the
  first decode step copies them again. Windows and recurrent states are shared; the first step
  that writes into a window copies that window.
- ``match``, ``shrink``: nothing.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet, ref

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from ...errors import LoadError, OptionError, StateError
from ...tokens import Token
from ..kv.alone import Alone
from ..kv.commands import Changed, Empty, Flush, Limit, Load, Save, Shrink
from ..kv.footprint import Footprint
from ..kv.layers import CacheFactory, leaves, sliceable
from . import piece as piece_file
from .entry import CELL, Entry
from .fetch import Fetch, ReadCost, Report, Worth
from .folder import Folder
from .layout import Layout
from .piece import Piece, checked_path
from .segments import Segment, Snapshot, holds, rebuilt, spliced
from .sizes import Sizes
from .tree import BLOCK, Found, Node, PrefixTree, TokenIds, as_ids
from .write_back import LAST_FILE, WriteBack

LEAVING = 10.0  # seconds for a flush when the interpreter ends
_STEP: int = KVCache.step  # tokens by which mlx-lm's caches grow


class DiskFigures(NamedTuple):
    """What is on disk, and what has been done there since the cache was made."""

    disk_bytes: int
    disk_limit: int
    pieces_written: int
    restored_tokens: int
    restores_refused: int


NO_DISK = DiskFigures(0, 0, 0, 0, 0)


class PrefixCache:
    """Finds the longest common prefix, token by token; evicts first what is of least use.

    ``make`` builds the empty caches of the model, one for each layer. ``model`` is used to tell
    its files from those of other models, and to check that a file fits its layers. ``block``: the
    most tokens kept in one piece. ``folder``: where what is held is kept on disk, too (see
    ``write_back``); ``restore`` brings it back.

    If every layer keeps its tokens side by side (plain and quantised KV), any prefix of what was
    inserted can be taken. If some layers do not (sliding windows, recurrent states), only the
    whole of it can be taken, or any prefix of it as long as no window is full. As ``take`` never
    gives all of a prompt, insert the KV of such models at a place that other prompts will share,
    or at least one token before the end of the prompt.

    If several machines have parts of the model, each has a cache of what its own layers hold, and
    ``part`` says which of how many it is. All of them hold the same tokens: a runner tells them
    what is put in and taken, and ``through`` carries out there as well what is asked for here.
    ``together`` does what may fail on one machine only, such as reading a file: then it fails on
    all. If the parts are not equally large, ``sizes`` are the footprints of all of them: then a
    prefix counts as many bytes as where it has the most.
    """

    through: Callable[[Changed], Any] | None = None
    together: Callable[[Callable[[], Any]], Any]

    def __init__(
        self,
        make: CacheFactory,
        max_bytes: int,
        *,
        model: Any = None,
        block: int = BLOCK,
        folder: Folder | None = None,
        part: tuple[int, int] = (0, 1),
        sizes: Sequence[Footprint] = (),
    ) -> None:
        self._make = make
        self._model = model
        self._max_bytes = max_bytes
        any_length = all(sliceable(leaf) for leaf in leaves(make()))
        self._tree = PrefixTree(any_length=any_length, block=block, sizes=Sizes(sizes))
        self._part = part
        self.together = lambda do: do()
        self._lock = threading.RLock()  # for all access to the tree
        self.folder = folder
        self.read_cost = ReadCost()
        self._restored = 0
        self._fetches: WeakSet[Fetch] = WeakSet()  # those that run live
        self._write_back: WriteBack | None = None
        if folder is not None:
            self._write_back = WriteBack(self._tree, folder, self._lock, lambda: self.max_bytes)
            self._tree.leaving = self._write_back.rescue
            atexit.register(_leave, ref(self))

    @property
    def entries(self) -> int:
        """How many sequences are held that are not a prefix of another one."""
        with self._lock:
            return sum(not node.children for node in self._tree.nodes())

    @property
    def any_length(self) -> bool:
        """Whether a prefix of any length can be taken of what was inserted."""
        return self._tree.any_length

    @property
    def nbytes(self) -> int:
        """The exact number of bytes of the arrays held; see ``sizes`` for parts of a model."""
        return self._tree.nbytes

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, limit: int) -> None:
        self._change(Limit(limit))

    @property
    def disk(self) -> DiskFigures:
        """The figures of its folder."""
        if self.folder is None or self._write_back is None:
            return NO_DISK
        written, refused = self._write_back.written, self.read_cost.refused
        held, limit = self.folder.nbytes, self.folder.max_bytes
        return DiskFigures(held, limit, written, self._restored, refused)

    def insert(self, tokens: Sequence[Token], kv: Alone, *, room: int | None = None) -> list[Node]:
        """Keep a copy of what ``kv`` holds of ``tokens``, its first ones.

        Submits a copy of what the tree does not hold yet, and returns the nodes that wait for it;
        ``kv`` does not change and is not kept alive. Evicts what is of least use to stay within
        ``max_bytes``, and within ``room`` if the caller has less memory now. A KV that is larger
        than that on its own, or whose layers do not all hold every token, is not kept; a part of
        one is only kept if ``any_length``.
        """
        ids, caches = as_ids(tokens[: kv.length]), kv.caches
        whole = len(ids) == kv.length or self.any_length
        if len(ids) and whole and holds(caches, kv.length):
            with self._lock:
                snapshot = None if self.any_length else partial(Snapshot.of, caches, len(ids))
                return self._insert(
                    ids, partial(Segment.of, caches), snapshot, room, self._tree.block
                )
        return []

    def _insert(
        self,
        ids: TokenIds,
        part: Callable[[int, int], Segment],
        state: Callable[[], Snapshot] | None,
        room: int | None,
        block: int,
    ) -> list[Node]:
        tree, size = self._tree, self._tree.sizes
        limit = self._max_bytes if room is None else max(0, min(room, self._max_bytes))
        self._has_room(limit)
        found = tree.find(ids, len(ids))
        if found is not None and found.length == len(ids):
            tree.touch(found.holder)
            return []
        place = tree.walk(ids)
        first = (place.length // block + 1) * block  # as the pieces of a folder are cut
        cuts = [place.length, *range(first, len(ids), block), len(ids)]
        segments = [part(a, b) for a, b in pairwise(cuts) if a < b]
        snapshot = None if state is None else state()
        new: list[Segment | Snapshot] = [*segments, *([snapshot] if snapshot else [])]
        if tree.cost(place) + sum(map(size.of, new)) > limit:
            return []
        node = tree.node_at(place)
        cut = [node, place.node] if node is not place.node else []
        added: list[Node] = []
        for segment in segments:
            node = tree.attach(node, ids[node.depth : node.depth + segment.count], segment)
            added.append(node)
        if snapshot is not None:
            tree.remember(node, snapshot)
        tree.touch(node)
        tree.evict(limit, keep=node)  # before the copies are made, so that both never add up
        try:
            mx.async_eval([part.arrays() for part in new])
        except BaseException:
            for unfinished in added[::-1] or [node]:
                tree.drop(unfinished)
            raise
        self._wake()
        return [*cut, *(added or [node])]

    def prove(self, nodes: Iterable[Node]) -> None:
        """Note that what was inserted is computed: only then it is written to the folder."""
        if self.folder is None:
            return
        with self._lock:
            for node in nodes:
                for array in node.arrays():  # each notes it, too, before another thread looks
                    memoryview(array)  # type: ignore[arg-type]
                node.computed = True
            self._wake()

    def flush(self, timeout: float | None = None) -> bool:
        """Write all that is held to the folder, if there is one; returns whether that was done
        within so many seconds. Other machines begin to, and go on until it is done."""
        self._change(Flush())
        return self._write_back is None or self._write_back.wait(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """``flush``, and neither read nor write anything more from then on."""
        done = self._write_back is None or self._write_back.close(timeout)
        fetches = list(self._fetches)
        for fetch in fetches:
            fetch.cancel()
        for fetch in fetches:
            fetch.is_running(LAST_FILE)
        return done

    def _has_room(self, nbytes: int) -> None:
        if self._write_back is not None:
            self._write_back.room = nbytes

    def _wake(self) -> None:
        if self._write_back is not None:
            self._write_back.wake()

    def fetch(
        self,
        tokens: Sequence[Token] | TokenIds,
        worth: Worth | None = lambda found: found,
        now: Callable[[], float] = time.perf_counter,
        moved: Callable[[Report], object] = lambda report: None,
    ) -> Fetch | None:
        """Begin to read what the folder has of these tokens and memory has not; ``restore`` takes
        it from there. ``None`` if there is no folder. The others as for ``Fetch``."""
        if self.folder is None:
            return None
        ids = as_ids(tokens)
        with self._lock:
            held = self._tree.find(ids, len(ids))
            fetch = Fetch(
                self.folder,
                ids,
                held.length if held is not None else 0,
                in_parts=self.any_length,
                worth=worth,
                cost=self.read_cost,
                now=now,
                moved=moved,
            )
            self._fetches.add(fetch)
        return fetch

    def restore(
        self,
        tokens: Sequence[Token] | TokenIds,
        *,
        fetch: Fetch | None = None,
        room: int | None = None,
    ) -> list[Node]:
        """Insert what the folder has of these tokens, which is waited for if it was not read yet.

        ``fetch``: what reads them, if something does already. Returns what ``insert`` does.
        """
        ids = as_ids(tokens)
        fetch = fetch or self.fetch(ids)
        pieces = fetch.take(len(ids)) if fetch is not None else []
        if not pieces:
            return []
        with self._lock:
            before = self._tree.walk(ids).length
            nodes = self._place(pieces, ids[: pieces[-1].stop], room)
            for node in nodes:
                node.saved = node.saved or node.start >= before
            self._restored += pieces[-1].stop - before if nodes else 0
        return nodes

    def _place(self, pieces: Sequence[Piece], ids: TokenIds, room: int | None) -> list[Node]:
        """Insert pieces that follow one another and end with these tokens, if what leads to them
        is held; returns what ``insert`` does."""
        placed = [(piece.segment, piece.start) for piece in pieces]
        if not pieces[-1].segment.layers:  # there is nothing of each token
            placed = [(Segment((), len(ids)), 0)]
        if self._tree.walk(ids).length < placed[0][1]:
            return []
        snapshot = pieces[-1].snapshot
        state = None if snapshot is None else lambda: snapshot
        block = min(CELL, self._tree.block)  # so that nothing of a folder's pieces is copied
        return self._insert(ids, partial(spliced, placed), state, room, block)

    def drop(self, nodes: Sequence[Node]) -> None:
        """Forget what was inserted, with all that goes on from there."""
        with self._lock:
            for node in nodes:
                self._tree.uproot(node)

    def match(self, tokens: Sequence[Token]) -> int:
        """How many leading tokens ``take`` would give; does not count as a use of them."""
        with self._lock:
            found = self._tree.find(as_ids(tokens), len(tokens) - 1)
        return 0 if found is None else found.length

    def known(self, tokens: Sequence[Token]) -> int:
        """How many leading tokens, but not the last one, have run in what is held. ``take`` may
        give fewer, as it needs a snapshot."""
        with self._lock:
            return self._tree.walk(as_ids(tokens)[:-1]).length

    def take(self, tokens: Sequence[Token]) -> Alone | None:
        """New caches with as many leading tokens as possible, or None if there are none.

        Never all of ``tokens``: the last one has to run for its logits. Nothing is evaluated
        here; the module says what is copied when it is.
        """
        steps = len(tokens) // _STEP + 1  # room for the whole sequence and one more token
        with self._lock:
            found = self._tree.find(as_ids(tokens), len(tokens) - 1)
            if found is None:
                return None
            self._tree.touch(found.holder)
            return self._kv(found, capacity=steps * _STEP)

    def shrink(self, max_bytes: int) -> None:
        """Evict until at most ``max_bytes`` are held; the limit does not change."""
        self._change(Shrink(max_bytes))

    def clear(self) -> None:
        self._change(Empty())

    def _change(self, command: Changed) -> Any:
        return (self.do if self.through is None else self.through)(command)

    def do(self, command: Changed) -> Any:
        """Carry out a command here."""
        match command:
            case Limit(limit):
                self._max_bytes = limit
                self._evict(limit)
            case Shrink(to):
                self._evict(to)
            case Empty():
                with self._lock:
                    self._tree.clear()
            case Flush():
                if self._write_back is not None:
                    self._write_back.begin_flush()
            case Save(path, tokens):
                return self.together(lambda: self._save(path, tokens))
            case Load(path, key):
                return self._put(path, self.together(lambda: self._read(path, key)))
        return None

    def _evict(self, to: int) -> None:
        with self._lock:
            self._has_room(to)
            self._tree.evict(to)

    def save(self, path: str | os.PathLike[str], tokens: Sequence[Token]) -> int:
        """Write as many leading ``tokens`` as possible to a file; returns how many.

        Unlike for ``take``, that may be all of them. Raises ``StateError`` if none of them is
        held, and ``OptionError`` if the path cannot be written.
        """
        count: int = self._change(Save(str(checked_path(path)), tuple(map(int, tokens))))
        return count

    def _save(self, path: str, tokens: Sequence[Token]) -> int:
        with self._lock:
            found = self._tree.find(as_ids(tokens), len(tokens))
            if found is None:
                raise StateError(
                    f"the prefix cache holds none of these {len(tokens)} tokens; run them first"
                )
            kv = self._kv(found, capacity=found.length)
        segment = Segment.of(kv.caches, 0, kv.length)
        snapshot = None if self.any_length else Snapshot.of(kv.caches, kv.length)
        prefix = Piece(0, as_ids(tokens[: kv.length]), segment, snapshot)
        try:
            piece_file.write(self._file(path), prefix, Layout(self._make, self._model))
        except (OSError, ValueError) as error:  # ValueError: a path that cannot be one
            file = self._file(path)
            raise OptionError("path", f"{file} cannot be written: {_reason(error)}") from error
        return kv.length

    def _file(self, path: str) -> Path:
        """The file of this machine's part, beside that of the first one."""
        which, of = self._part
        return Path(f"{path}.rank-{which}-of-{of}" if which else path)

    def load(self, path: str | os.PathLike[str]) -> int:
        """Insert the prefix that ``save`` wrote to a file; returns how many tokens it has.

        Raises ``LoadError`` if the file is missing, damaged, made with another model, or larger
        than ``max_bytes``, and ``OptionError`` if the path cannot be that of a file; then nothing
        has changed.
        """
        file = str(checked_path(path))
        if self.through is None:
            return self._put(file, self._read(file))
        count: int = self.through(Load(file, _key(self._read(file))))
        return count

    def _read(self, path: str, key: str | None = None) -> Piece:
        file = self._file(path)
        try:
            prefix = piece_file.read(file, Layout(self._make, self._model))
        except (OSError, ValueError) as error:
            raise LoadError(f"{file} cannot be read: {_reason(error)}") from error
        if prefix.start or (prefix.snapshot is None and not self.any_length):
            raise LoadError(f"{file} is a part of a prefix; pass a file that save_prefix wrote")
        if key is not None and key != _key(prefix):
            raise LoadError(f"{file} holds other tokens than {path} of rank 0; save it again")
        return prefix

    def _put(self, path: str, prefix: Piece) -> int:
        with self._lock:
            nodes = self._place([prefix], prefix.tokens, None)
            mx.eval([node.arrays() for node in nodes])
            self.prove(nodes)
            found = self._tree.find(prefix.tokens, prefix.stop)
        if found is None or found.length < prefix.stop:
            raise LoadError(
                f"{path} holds {prefix.nbytes:,} bytes of KV, but the prefix cache may hold"
                f" {self._max_bytes:,} in all; raise its max_bytes"
            )
        return prefix.stop

    def _kv(self, found: Found, *, capacity: int) -> Alone:
        caches = rebuilt(self._make, found.runs, found.snapshot, found.length, capacity)
        return Alone(self._make, caches, found.length)


def _key(prefix: Piece) -> str:
    return Entry("", 0, prefix.tokens).key


def _reason(error: Exception) -> object:
    return error.strerror if isinstance(error, OSError) else error


def _leave(held: ref[PrefixCache]) -> None:
    """At the interpreter's end, which threads that use MLX should not see."""
    if (cache := held()) is not None:
        cache.close(LEAVING)
