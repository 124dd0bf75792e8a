"""All known blocks, in memory and on disk: which follows which, and which was used when.

Owns the search for a prompt among them. Must never know limits or files. Invariant: in memory, the
blocks that lead to another one were used at least as recently, so no block in memory follows the
least recently used one.

The whole blocks of a prompt are found by key, one after the other. The rest of the prompt is
compared with all blocks that come next, and the one with the longest common prefix is taken.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from ...errors import LoadError
from ..kv.footprint import Footprint
from ..kv.layers import (
    CacheFactory,
    LayerCache,
    Run,
    can_trim,
    can_undo,
    copied,
    cut,
    leaves,
    sliceable,
)
from ..kv.slots import Slot
from .block import BLOCK, Block, File, TokenIds, begins, in_common, key_of

LEAST = 16  # tokens between two places, at least
SPACING = 512  # tokens between two places among the earlier messages, at least
WIDEST = 4096
PARTED = 64  # tokens that have run before but could not be taken, from which on a place is worth it
OPENED = 32  # files at most whose tokens are read to find the longest common prefix

Read: TypeAlias = Callable[[Block], TokenIds | None]
"""Reads the tokens of a block on disk from its file; None if that is gone or broken."""


class Chain(NamedTuple):
    """The first ``length`` tokens of a prompt, and the blocks with them. The last one may have more
    tokens; others after it may lead on to one whose snapshot can be trimmed to that length."""

    length: int
    blocks: tuple[Block, ...] = ()

    @property
    def files(self) -> list[Block]:
        """The blocks that have to be read from disk."""
        return [block for block in self.blocks if block.layers is None]

    def fill(self, kv: Slot) -> None:
        """Fill an empty slot with these tokens."""
        kv.fill(self._columns(), self._others(), self.length)

    def _columns(self) -> list[list[Run]]:
        """For each layer that can be cut, what the blocks have of it."""
        held = [block for block in self.blocks if block.start < self.length]
        rows = [list(block.layers or ()) for block in held]
        if self.length < held[-1].stop:
            rows[-1] = [cut(layer, 0, self.length - held[-1].start) for layer in rows[-1]]
        return [list(column) for column in zip(*rows, strict=True)]

    def _others(self) -> tuple[LayerCache, ...]:
        """What the other layers hold after the last token."""
        others: tuple[LayerCache, ...] = copied(self.blocks[-1].snapshot)
        if spare := self.blocks[-1].stop - self.length:
            for leaf in others:
                leaf.trim(spare)
        return others


class Blocks:
    """See the module. ``make`` builds the model's empty caches, one for each layer, and ``root`` is
    the key that its first blocks follow. Hold the ``lock`` to use it."""

    def __init__(self, make: CacheFactory, root: str) -> None:
        self.lock = threading.RLock()
        self.root = root
        self.nbytes = 0  # of the blocks in memory
        self.disk_bytes = 0
        self.sizes: list[Footprint] = []  # of a model's parts, if they are not equally large
        self._fresh = list(leaves(make()))
        self._known: dict[str, Block] = {}
        self._below: dict[str, dict[str, Block]] = defaultdict(dict)  # by the key of the parent
        self._held: OrderedDict[str, Block] = OrderedDict()  # in memory, latest used last

    @property
    def any_length(self) -> bool:
        """Whether a sequence can go on from anywhere, as each layer can be cut."""
        return all(map(sliceable, self._fresh))

    def size_of(self, block: Block) -> int:
        """The bytes that a block counts for."""
        if not self.sizes:
            return block.nbytes
        size = block.count * max(each.growing + each.early for each in self.sizes)
        states = [each.snapshot_at(block.stop) for each in self.sizes if block.has_state]
        return size + max(states, default=0)

    def __iter__(self) -> Iterator[Block]:
        """The blocks in memory, the least recently used first."""
        return iter(self._held.values())

    def __reversed__(self) -> Iterator[Block]:
        return reversed(self._held.values())

    def on_disk(self) -> list[Block]:
        return [block for block in self._known.values() if block.file is not None]

    def get(self, key: str, disk: bool = False) -> Block | None:
        block = self._known.get(key)
        return block if block is not None and _is_there(block, disk) else None

    def after(self, key: str, disk: bool = False) -> list[Block]:
        """The blocks that follow a key."""
        return [block for block in self._below.get(key, {}).values() if _is_there(block, disk)]

    # ---- what changes ----------------------------------------------------------------------

    def hold(self, block: Block) -> None:
        """Put a block into memory, as the most recently used one."""
        if (known := self._known.get(block.key)) is not None:
            block.file = known.file
        self._held[block.key] = block
        # Of two that serve a prompt equally well, the one longer in memory does
        self._below[block.parent].pop(block.key, None)
        self._note(block)
        self.nbytes += block.size

    def put(self, block: Block, file: File | None) -> None:
        """Note the file of a block, or with None that it has no file any more."""
        known = self._known.get(block.key) or replace(block, layers=None, snapshot=(), file=None)
        self.disk_bytes += (file.nbytes if file else 0) - (known.file.nbytes if known.file else 0)
        known.file = file
        self._note(known)

    def drop(self, block: Block) -> None:
        """Drop a block from memory, with all that follow it there, unless it is gone already."""
        if self._held.get(block.key) is not block:
            return
        going = [block]
        for each in going:
            going += self.after(each.key)
        for each in reversed(going):
            del self._held[each.key]
            self.nbytes -= each.size
            self._note(replace(each, layers=None, snapshot=()))  # a copy: the writer may use it

    def _note(self, block: Block) -> None:
        """Know a block, or forget it if it is neither in memory nor on disk."""
        if block.layers is not None or block.file is not None:
            self._known[block.key] = self._below[block.parent][block.key] = block
        elif self._known.pop(block.key, None) is not None:
            del self._below[block.parent][block.key]
            if not self._below[block.parent]:
                del self._below[block.parent]

    def touch(self, way: Sequence[Block]) -> None:
        """Note that blocks which follow one another, from the first one on, are used now; and with
        them the first place on their way that a sequence can go on from, as others may share it."""
        self.protect(way)
        if self.any_length:
            return
        for number, block in enumerate(way):
            assert block.tokens is not None
            after = self.after(block.parent)
            ends = [each for each in after if each.has_state and each.begins(block.tokens)]
            if ends:
                self.protect([*way[:number], min(ends, key=lambda each: each.count)])
                return

    def protect(self, way: Sequence[Block]) -> None:
        """Move these blocks, and nothing else, to where they are evicted last."""
        for block in reversed(way):
            self._held.move_to_end(block.key)

    # ---- what is found ---------------------------------------------------------------------

    def whole(self, ids: TokenIds) -> tuple[list[Block], str]:
        """The whole blocks in memory that these tokens begin with, and the key that blocks after
        them follow."""
        way, parent = list[Block](), self.root
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            block = self.get(key_of(parent, ids[start : start + BLOCK]))
            if block is None:
                break
            way.append(block)
            parent = block.key
        return way, parent

    def known(self, ids: TokenIds) -> int:
        """How many leading tokens the blocks in memory hold, whether or not they can be taken."""
        way, parent = self.whole(ids)
        at = BLOCK * len(way)
        return at + self._nearest(parent, ids[at:], None)[0]

    def end(self, parent: str, rest: TokenIds) -> Block | None:
        """A block in memory, after ``parent``, from which a sequence can go on after ``rest``."""
        if not self.any_length:
            return self.get(key_of(parent, rest, has_state=True))
        for each in self.after(parent):
            if each.tokens is not None and begins(rest, each.tokens):
                return each
        return None

    def beginnings(self, block: Block, disk: bool = False) -> list[Block]:
        """The tails that are a prefix of a block, and of no use besides it."""
        if not self.any_length or block.tokens is None:
            return []
        after = self.after(block.parent, disk)
        return [each for each in after if each.count < block.count and each.begins(block.tokens)]

    def find(self, ids: TokenIds, read: Read | None = None) -> Chain:
        """The longest prefix of these tokens that a sequence can go on from; with ``read``, also
        from what is on disk."""
        best, way, parent, disk = Chain(0), list[Block](), self.root, read is not None
        while True:
            rest = ids[BLOCK * len(way) :]
            if not self.any_length:
                after = self.after(parent, disk)
                ends = [each for each in after if each.has_state and each.begins(rest)]
                if ends:
                    end = max(ends, key=lambda each: each.count)
                    best = Chain(end.stop, (*way, end))
            whole = self.get(key_of(parent, rest[:BLOCK]), disk) if len(rest) >= BLOCK else None
            if whole is None:
                break
            way.append(whole)
            parent = whole.key
        common, near = self._nearest(parent, rest, read)
        length = BLOCK * len(way) + common
        if self.any_length:
            return Chain(length, (*way, *near[: bool(common)]))
        if length > best.length and (beyond := self._beyond(near, length, disk)):
            return Chain(length, (*way, *beyond))
        return best

    def _nearest(self, parent: str, rest: TokenIds, read: Read | None) -> tuple[int, list[Block]]:
        """The most tokens that ``rest`` has in common with a block after ``parent``, and all blocks
        that have them in common. Files are opened last, and few of them."""
        after = self.after(parent, read is not None)
        unread = [block for block in after if block.tokens is None]
        unread.sort(key=lambda block: -block.file.used if block.file else 0)
        most, near = 0, list[Block]()
        for block in [*(block for block in after if block.tokens is not None), *unread[:OPENED]]:
            if block.tokens is None and read is not None and most < len(rest):
                block.tokens = read(block)
            if block.tokens is None:
                continue
            # One is enough if any length can be taken; a single token rules out most others.
            at, enough = (most, len(rest)) if self.any_length else (most - 1, len(rest) + 1)
            if at >= 0 and (at >= min(block.count, enough) or block.tokens[at] != rest[at]):
                continue
            common = in_common(block.tokens, rest)
            if common > most:
                most, near = common, []
            if common == most and (not self.any_length or not near):
                near.append(block)
        return most, near

    def _beyond(self, roots: Sequence[Block], length: int, disk: bool) -> list[Block]:
        """The way from one of these blocks, itself included, down to the nearest one whose snapshot
        can be trimmed to ``length`` tokens."""
        ways = deque([each] for each in roots if can_undo(self._fresh, each.stop))
        while ways:
            way = ways.popleft()
            end = way[-1]
            if end.has_state and all(can_trim(leaf, end.stop - length) for leaf in end.snapshot):
                return way
            after = self.after(end.key, disk)
            ways += [[*way, each] for each in after if can_undo(self._fresh, each.stop)]
        return []


def _is_there(block: Block, disk: bool) -> bool:
    return block.layers is not None or (disk and block.is_filed)


def different(sizes: Sequence[Footprint]) -> list[Footprint]:
    """The footprints of a model's parts, if these are not equally large.

    Raises ``LoadError`` if one part could not take back, or go on from, what another one can.
    """
    parts = {replace(each, weights=0) for each in sizes}
    if len({(not each.fixed, *sorted({w for _, w in each.windows})) for each in parts}) > 1:
        raise LoadError(
            "the parts of this model have layers of different kinds, so that they cannot keep the"
            " same prefixes; use another number of machines, or fewer"
        )
    return list(parts) if len(parts) > 1 else []


# ---- where a snapshot is worth its memory ------------------------------------------------------
#
# A sequence can go on only from a snapshot, so these belong where later prompts are likely to part:
# at the end of the system prompt and the tools; at the beginning of the last message, which may be
# another one next time, and of its answer, as many templates leave out the reasoning of earlier
# ones; at the beginning of some messages in between; and where this prompt parts from those known.


def spacing_of(snapshot: int, token: int) -> int:
    """How far apart the places in between are: far enough that a snapshot takes no more memory than
    the KV of the tokens before it. ``snapshot`` and ``token`` are bytes."""
    return max(SPACING, min(snapshot // token, WIDEST)) if token else SPACING


def places_of(beginnings: Sequence[int], end: int, spacing: int) -> list[int]:
    """The places of a prompt whose messages have these ``beginnings``, the last of which may be the
    answer's; ``end`` is the last place from which the prompt can go on.

    Prompts with a common prefix have the same places in it, apart from the last ones.
    """
    inner = [place for place in beginnings if place >= LEAST]
    return [*_spaced(inner[:-2], spacing), *inner[-2:], end]


def ahead(places: Iterable[int], held: int, known: int) -> list[int]:
    """The places at which to keep a snapshot of a prompt of which ``held`` tokens need not run.

    ``known`` tokens of it have run before. If that is many more, an earlier prompt parted from this
    one there, and later ones may, too.
    """
    parting = [known] if known - held >= PARTED else []
    inner = sorted(place for place in {*places, *parting} if place >= held + LEAST)
    return _spaced(inner, LEAST)


def _spaced(places: Iterable[int], spacing: int) -> list[int]:
    """The first place, and each that is at least ``spacing`` tokens after the one before."""
    spaced: list[int] = []
    for place in places:
        if not spaced or place - spaced[-1] >= spacing:
            spaced.append(place)
    return spaced
