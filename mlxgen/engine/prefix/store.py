"""The KV of token sequences that were run before, for sequences that begin with the same tokens.

Owns what is kept of a KV and taken again, the limit in bytes, and what is read from the folder of
files. Must never know requests or text: its caller says which tokens a KV holds. Invariant:
``nbytes`` is the sum of the blocks' sizes, and never more than ``max_bytes``. Using a block uses
all that lead to it, so a shared beginning outlives its ends.

Any thread may call it. Arrays that are taken from it are not evaluated yet, so they belong to the
thread that took them. Only ``settle`` waits for the device.

A block is read from disk when a prompt needs it, between two steps. If a model runs on several
machines, each reads its own part of a block, and either all of them have it or none.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import ref

import mlx.core as mx
import numpy as np

from ...errors import LoadError, StateError
from ...tokens import Token
from ..kv.commands import Command, Drop, Keep, Take, Wait
from ..kv.footprint import Footprint
from ..kv.layers import CacheFactory, LayerCache, copied, narrowed, owned
from ..kv.slots import Group, Slot
from . import block_file
from .block import BLOCK, Block, TokenIds, as_ids, root_of
from .block_file import Layout, checked_path
from .blocks import Blocks, Chain, different
from .disk import NO_DISK, Disk, DiskFigures

logger = logging.getLogger(__name__)

LEAVING = 10.0  # seconds to write what is not on disk when the interpreter ends


class BlockStore:
    """See the module.

    ``make`` builds the model's empty caches, one for each layer; ``model`` tells its files from
    those of others. ``folder``: where the blocks are kept on disk, too.

    If every layer can be cut (``any_length``), any prefix of what was kept can be taken. If not, a
    sequence can go on only from the end of what was kept, or from before it as long as no window is
    full. As ``take`` never gives all of a prompt, keep the KV of such models at a place that other
    prompts will share, or at least one token before the end of the prompt.

    If several machines have parts of the model, ``part`` says which of how many this is, and each
    has a store of its own; all of them get the same commands. ``through`` carries out on all of
    them what is asked for here, and ``together`` does what may fail on one machine only: then it
    fails on all. If the parts are not equally large, ``sizes`` are the footprints of all of them: a
    block then counts for as many bytes as where it is largest.
    """

    through: Callable[[Command], Any] | None = None
    together: Callable[[Callable[[], Any]], Any]

    def __init__(
        self,
        make: CacheFactory,
        max_bytes: int,
        *,
        model: Any = None,
        folder: Disk | None = None,
        part: tuple[int, int] = (0, 1),
        sizes: Sequence[Footprint] = (),
    ) -> None:
        self.folder = folder
        self.together = lambda do: do()
        self._make = make
        self._model = model
        self._max_bytes = max_bytes
        self._part = part
        self._blocks = Blocks(make, root_of("")) if folder is None else folder.blocks
        self._blocks.sizes = different(sizes)
        self._lock = self._blocks.lock
        if folder is not None:
            atexit.register(_leave, ref(self))

    # ---- what there is ---------------------------------------------------------------------

    @property
    def any_length(self) -> bool:
        """Whether any beginning of what was kept can be taken."""
        return self._blocks.any_length

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays held; see ``sizes`` for parts of a model."""
        return self._blocks.nbytes

    @property
    def entries(self) -> int:
        """How many sequences are held, not counting those that are a prefix of another one."""
        with self._lock:
            return sum(not self._blocks.after(block.key) for block in self._blocks)

    @property
    def disk(self) -> DiskFigures:
        """The figures of its folder."""
        return NO_DISK if self.folder is None else self.folder.figures

    def match(self, tokens: Sequence[Token]) -> int:
        """How many leading tokens ``take`` would give; does not count as a use of them."""
        with self._lock:
            return self._blocks.find(as_ids(tokens)[:-1]).length

    def known(self, tokens: Sequence[Token]) -> int:
        """How many leading tokens, but not the last one, are held. ``take`` may give fewer, as it
        needs a snapshot."""
        with self._lock:
            return self._blocks.known(as_ids(tokens)[:-1])

    # ---- in and out ------------------------------------------------------------------------

    def take(self, tokens: Sequence[Token], slot: Slot) -> int:
        """Fill an empty slot with as many leading tokens as possible; returns how many.

        Never all of ``tokens``: the last one has to run for its logits.
        """
        with self._lock:
            chain = self._blocks.find(as_ids(tokens)[:-1])
            self._blocks.touch(chain.blocks)
            if chain.length:
                chain.fill(slot)
            return chain.length

    def keep(self, tokens: Sequence[Token], kv: Slot, *, room: int | None = None) -> None:
        """Keep a copy of what ``kv`` holds of ``tokens``, its first ones.

        Submits a copy of what is not held yet; ``kv`` does not change and is not kept alive. Evicts
        the least recently used blocks to stay within ``max_bytes``, and within ``room`` if the
        caller has less memory now. A KV that is larger than that on its own is not kept, and a part
        of one only if ``any_length``.
        """
        ids = as_ids(tokens[: kv.length])
        whole = len(ids) == kv.length or self.any_length
        if not len(ids) or not whole:
            return
        with self._lock:
            last = (len(ids) - 1) // BLOCK * BLOCK
            way, parent = self._blocks.whole(ids[:last])
            new, start = list[Block](), BLOCK * len(way)
            if start == last and (end := self._blocks.end(parent, ids[last:])) is not None:
                self._blocks.touch([*way, end])
                return
            ends = [*range(start, len(ids), BLOCK), len(ids)]
            for layers, (at, stop) in zip(kv.parts(ends), pairwise(ends), strict=True):
                ends_here = stop == len(ids) and not self.any_length
                block = Block.of(parent, at, ids[at:stop].copy(), ends_here)
                block.layers, parent = layers, block.key
                block.snapshot = snapshot_of(kv) if ends_here else ()
                new.append(block)
            self._add(way, new, room)

    def _add(self, way: list[Block], new: list[Block], room: int | None) -> bool:
        """Hold ``new`` blocks after those that lead to them; returns whether there was room."""
        limit = self._limit(room)
        for block in new:
            block.size = self._blocks.size_of(block)
        added = sum(block.size for block in new)
        if sum(block.size for block in way) + added > limit:
            return False
        self._blocks.protect(way)
        self._evict(limit - added)  # before the copies are made, so that both never add up
        mx.async_eval([block.arrays() for block in new if not block.settled])
        for old in self._blocks.beginnings(new[0]):
            self._blocks.drop(old)
        for block in new:
            self._blocks.hold(block)
        self._blocks.touch([*way, *new])
        return True

    def _limit(self, room: int | None) -> int:
        return self._max_bytes if room is None else max(0, min(room, self._max_bytes))

    def settle(self) -> None:
        """Wait until everything kept is computed, and drop it if that fails. Nothing else runs now,
        so begin to write it to disk."""
        with self._lock:
            try:
                mx.eval([block.arrays() for block in self._blocks if not block.settled])
            except Exception:
                self.forget()
            for block in self._blocks:
                block.settled = True
            if self.folder is not None:
                self.folder.rest()

    def forget(self) -> None:
        """Drop what is not known to be computed, with all that follows it: the device failed."""
        with self._lock:
            for block in [block for block in self._blocks if not block.settled]:
                self._blocks.drop(block)

    def work(self) -> None:
        """Note that the device has something to do: write no more than a flush asks for."""
        if self.folder is not None:
            self.folder.rests = False

    # ---- commands --------------------------------------------------------------------------

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, limit: int) -> None:
        self._change(Drop(limit, for_good=True))

    def shrink(self, max_bytes: int) -> None:
        """Evict until at most ``max_bytes`` are held; the limit does not change."""
        self._change(Drop(max_bytes))

    def clear(self) -> None:
        self._change(Drop(0))

    def flush(self, timeout: float | None = None) -> bool:
        """Write all that is held to the folder, if there is one; returns whether that was done
        within ``timeout`` seconds. Other machines do so, too, as long as nothing runs."""
        self._change(Wait())
        return self.folder is None or self.folder.flush(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Flush, and write nothing from then on."""
        return self.folder is None or self.folder.close(timeout)

    def _change(self, command: Command) -> Any:
        return (self.do if self.through is None else self.through)(command)

    def do(self, command: Command) -> Any:
        """Carry out a command here."""
        match command:
            case Drop(to, for_good):
                if for_good:
                    self._max_bytes = to
                self._evict(to)
            case Wait():
                self.settle()
            case Keep(None, tokens, room, has_state):
                return self._restore(as_ids(tokens), has_state, room)
            case Keep(str(path), tokens):
                return self._put(path, self.together(lambda: self._read(path, tokens)))
            case Take(str(path), tokens):
                return self.together(lambda: self._save(path, as_ids(tokens)))
        return None

    def _evict(self, to: int) -> None:
        with self._lock:
            while self.nbytes > to and (block := next(iter(self._blocks), None)) is not None:
                self._blocks.drop(block)

    # ---- from the disk ---------------------------------------------------------------------

    def restore(
        self,
        tokens: Sequence[Token],
        *,
        room: int | None = None,
        seconds: float | None = None,
        do: Callable[[Command], Any] | None = None,
    ) -> bool:
        """Read what the folder, but not memory, has of these tokens without the last one; returns
        whether that is all there is.

        Reads at least one block, and more for about ``seconds`` seconds; none if that is negative.
        ``do`` carries out the commands.
        """
        if self.folder is None:
            return True
        self.folder.refresh()
        ids, start = as_ids(tokens)[:-1], time.monotonic()
        while (command := self._next(self.folder, ids, room)) is not None:
            if seconds is not None and seconds < 0:
                return False
            (do or self._change)(command)
            if seconds is not None and time.monotonic() >= start + seconds:
                seconds = -1
        return True

    def _next(self, disk: Disk, ids: TokenIds, room: int | None) -> Keep | None:
        """The command to read the next block, if there is room for all that are needed."""
        with self._lock:
            first: Block | None = None
            while first is None or first.tokens is None:  # that file has just gone
                chain = self._blocks.find(ids, disk.tokens_of)
                files, more = chain.files, chain.length - self._blocks.find(ids).length
                sizes = [block.file.nbytes for block in files if block.file is not None]
                needed = sum(sizes[:1] if self.any_length else sizes)
                free = self._limit(room) - sum(block.size for block in chain.blocks)
                if more <= 0 or needed > free:
                    return None
                first = files[0]
                if first.tokens is None:
                    rest = ids[first.start :]
                    is_ours = first.begins(rest)
                    first.tokens = rest[: first.count] if is_ours else disk.tokens_of(first)
            disk.touch(chain.blocks[-1])
            before = [block.tokens for block in chain.blocks if block.stop <= first.start]
            told: list[Token] = np.concatenate([*before, first.tokens]).tolist()
            return Keep(None, tuple(told), room, first.has_state)

    def _restore(self, ids: TokenIds, has_state: bool, room: int | None) -> int:
        """Read the block that these tokens end with into memory; returns how many of the tokens are
        held."""
        start, folder = (len(ids) - 1) // BLOCK * BLOCK, self.folder
        assert folder is not None
        with self._lock:
            way, parent = self._blocks.whole(ids[:start])
            wanted = Block.of(parent, start, ids[start:], has_state)
            block = self._blocks.get(wanted.key, disk=True) or wanted
            if block.layers is not None:  # another thread has just read it
                return len(ids)
            try:
                found: Block = self.together(lambda: folder.read(block))
                found.settled = True
                if self._add(way, [found], room):
                    return len(ids)
            except Exception as error:  # whatever a disk does: it is never worth a request
                if not isinstance(error, LoadError):
                    logger.warning("a prefix could not be read from the disk: %s", error)
            if block.file is not None:  # or it would be read again and again
                self._blocks.put(block, block.file._replace(refused=True))
            return 0

    # ---- in files of their own -------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], tokens: Sequence[Token]) -> int:
        """Write as many leading ``tokens`` as possible to a file; returns how many.

        Unlike with ``take``, that may be all of them. Raises ``StateError`` if none of them is
        held, and ``OptionError`` if the path cannot be written.
        """
        count: int = self._change(Take(str(checked_path(path)), tuple(map(int, tokens))))
        return count

    def _save(self, path: str, ids: TokenIds) -> int:
        with self._lock:
            chain = self._blocks.find(ids)
            if not chain.length:
                raise StateError(
                    f"the prefix cache holds none of these {len(ids)} tokens; run them first"
                )
            kv = Group(self._make).add(0)
            chain.fill(kv)
        prefix = Block.of("", 0, ids[: kv.length], not self.any_length)
        (prefix.layers,) = kv.parts([0, kv.length])
        prefix.snapshot = snapshot_of(kv)
        block_file.save(self._file(path), prefix, Layout(self._make, self._model))
        return kv.length

    def load(self, path: str | os.PathLike[str]) -> int:
        """Keep the prefix that ``save`` wrote to a file; returns its number of tokens.

        Raises ``LoadError`` if the file is missing, damaged, made with another model, or larger
        than ``max_bytes``, and ``OptionError`` if the path cannot be that of a file; then nothing
        has changed.
        """
        file = str(checked_path(path))
        prefix = self._read(file)
        if self.through is None:
            return self._put(file, prefix)
        count: int = self.through(Keep(file, told_of(prefix)))
        return count

    def _file(self, path: str) -> str:
        """The file of this machine's part, next to that of the first one."""
        which, of = self._part
        return f"{path}.rank-{which}-of-{of}" if which else path

    def _read(self, path: str, tokens: Sequence[Token] | None = None) -> Block:
        file = self._file(path)
        prefix = block_file.load(file, Layout(self._make, self._model))
        if prefix.start or prefix.parent or not (prefix.has_state or self.any_length):
            raise LoadError(f"{file} is a part of a prefix; pass a file that save_prefix wrote")
        if tokens is not None and tokens != told_of(prefix):
            raise LoadError(f"{file} holds other tokens than {path} of rank 0; save it again")
        return prefix

    def _put(self, path: str, prefix: Block) -> int:
        count, tokens = prefix.count, told_of(prefix)
        with self._lock:
            with block_file.checked(Path(path)):
                kv = Group(self._make).add(0)
                Chain(count, (prefix,)).fill(kv)
                self.keep(tokens, kv)
            self.settle()
            if self._blocks.find(as_ids(tokens)).length < count:
                raise LoadError(
                    f"{path} holds {prefix.nbytes:,} bytes of KV, but the prefix cache may hold"
                    f" {self._max_bytes:,} in all; raise its max_bytes"
                )
        return count


def told_of(prefix: Block) -> tuple[Token, ...]:
    """The tokens of a block that was read."""
    assert prefix.tokens is not None
    return tuple(prefix.tokens.tolist())


def snapshot_of(kv: Slot) -> tuple[LayerCache, ...]:
    """A copy of the layers that cannot be cut, not evaluated yet, without keys that no later token
    can see."""
    return tuple([copied(narrowed(leaf), owned) for leaf in kv.others()])


def _leave(held: ref[BlockStore]) -> None:
    """Flush and close when the interpreter ends: no thread should use MLX beyond that."""
    if (store := held()) is not None:
        if store.through is None:
            store.settle()
        store.close(LEAVING)
