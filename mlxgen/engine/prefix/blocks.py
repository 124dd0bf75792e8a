"""The blocks in memory, in the order of their use, and what a prompt finds among them.

Owns the index: which block follows which, and which was used when. Must never know how much is too
much, or how a block came to be here. Invariant: a block is used no later than those before it, so
the one that was used least recently has none after it.

A prompt is followed block by block, by key. What is left of it after its last whole block is looked
for among all blocks that come next, by their longest common beginning.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from ...errors import LoadError
from ..kv.alone import Alone
from ..kv.footprint import Footprint
from ..kv.layers import (
    CacheFactory,
    LayerCache,
    Run,
    copied,
    cut,
    fill,
    leaves,
    restore,
    sliceable,
)
from ..kv.slots import Slot
from .block import BLOCK, Block, Snapshot, TokenIds, begins, in_common, joined, key_of
from .disk import Disk, File

OPENED = 32  # files at most whose tokens are looked at to find the longest common beginning

Entry: TypeAlias = Block | File


class Chain(NamedTuple):
    """A beginning, ``length`` tokens of a prompt: the blocks with it, the last of which may have
    more tokens, and those ``beyond`` that lead on to the one whose snapshot can be trimmed to it.
    """

    length: int
    entries: tuple[Entry, ...] = ()
    beyond: tuple[Entry, ...] = ()

    @property
    def all_of(self) -> tuple[Entry, ...]:
        return (*self.entries, *self.beyond)

    @property
    def blocks(self) -> list[Block]:
        """Those that are in memory."""
        return [entry for entry in self.all_of if isinstance(entry, Block)]

    @property
    def files(self) -> list[File]:
        """Those that are on disk only."""
        return [entry for entry in self.all_of if isinstance(entry, File)]

    def alone(self, make: CacheFactory, capacity: int) -> Alone:
        """The sequence in caches of its own, with room for ``capacity`` tokens.

        Nothing is evaluated. Each layer that can be cut is one concatenation, so the sequence is
        copied once; a snapshot's arrays are shared, and a write in place copies them first.
        """
        caches, columns, others = make(), iter(self._columns()), self._others()
        for leaf in leaves(caches):
            if sliceable(leaf):
                fill(leaf, joined(next(columns), capacity - self.length), self.length)
        if others:
            restore(caches, others)
        return Alone(make, caches, self.length)

    def into(self, slot: Slot) -> Slot:
        """The sequence in a slot of its own: its blocks are written there, one after the other."""
        slot.fill(self._columns(), self._others(), self.length)
        return slot

    def _columns(self) -> list[list[Run]]:
        """For each layer that can be cut, what its blocks have."""
        held = [block for block in self.blocks if block.start < self.length]
        layers = [list(block.layers) for block in held]
        most = self.length - held[-1].start
        if most < held[-1].count:
            layers[-1] = [cut(layer, 0, most) for layer in layers[-1]]
        return [list(column) for column in zip(*layers, strict=True)]

    def _others(self) -> tuple[LayerCache, ...]:
        """What the other layers hold after the last token."""
        snapshot = self.blocks[-1].snapshot
        if snapshot is None:
            return ()
        kept: tuple[LayerCache, ...] = copied(snapshot.leaves)
        if spare := snapshot.length - self.length:
            for leaf in kept:
                leaf.trim(spare)
        return kept


class Blocks:
    """See the module. ``make`` builds the empty caches of the model, one for each layer, and
    ``root`` is the key that its first blocks follow. ``sizes``: the footprints of all parts of a
    model on several machines. If these are not equally large, a block counts as many bytes as where
    it has the most, so that all parts evict the same."""

    def __init__(self, make: CacheFactory, root: str, sizes: Sequence[Footprint] = ()) -> None:
        self.nbytes = 0
        self._sizes = different(sizes)
        self._root = root
        self._fresh = Alone(make)
        self._held: OrderedDict[str, Block] = OrderedDict()  # used last at the end
        self._below: dict[str, dict[str, Block]] = defaultdict(dict)  # by the key of the parent

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Block]:
        """From the one that was used least recently on."""
        return iter(self._held.values())

    def __reversed__(self) -> Iterator[Block]:
        return reversed(self._held.values())

    @property
    def any_length(self) -> bool:
        """Whether a sequence can go on from anywhere, as each layer can be cut."""
        return not self._fresh.needs_snapshots

    def get(self, key: str) -> Block | None:
        return self._held.get(key)

    def size_of(self, block: Block) -> int:
        """The bytes that the layers of a block count."""
        if not self._sizes:
            return block.nbytes
        return block.count * max(each.growing + each.early for each in self._sizes)

    def size_of_state(self, state: Snapshot | None) -> int:
        """The bytes that a snapshot counts."""
        if state is None or not self._sizes:
            return 0 if state is None else state.nbytes
        return max(each.snapshot_at(state.length) for each in self._sizes)

    def after(self, block: Block) -> list[Block]:
        """The blocks that follow one."""
        return list(self._below.get(block.key, {}).values())

    # ---- what changes ----------------------------------------------------------------------

    def add(self, block: Block) -> None:
        """Hold a block, as the one that was used last."""
        self._held[block.key] = self._below[block.parent][block.key] = block
        self.nbytes += block.size

    def grow(self, block: Block, nbytes: int) -> None:
        """Note that a block that is held counts more bytes now."""
        block.size += nbytes
        self.nbytes += nbytes

    def drop(self, block: Block) -> None:
        """Drop a block with all that follow it, if it is still there."""
        if self._held.get(block.key) is not block:
            return
        going = [block]
        for each in going:
            going += self.after(each)
        for each in reversed(going):
            del self._held[each.key], self._below[each.parent][each.key]
            if not self._below[each.parent]:
                del self._below[each.parent]
            self.nbytes -= each.size

    def clear(self) -> None:
        self._held.clear()
        self._below.clear()
        self.nbytes = 0

    def touch(self, way: Sequence[Block]) -> None:
        """Note that blocks which follow one another from the first one on are used now; and with
        them the first place on their way that a sequence can go on from, as others may share it."""
        self.protect(way)
        if not self.any_length and (end := self._first_end(way)) is not None:
            for block in (end, *reversed(way[: end.start // BLOCK])):
                self._held.move_to_end(block.key)

    def protect(self, way: Sequence[Block]) -> None:
        """Put these blocks where they are evicted last of all, and nothing else with them."""
        for block in reversed(way):
            self._held.move_to_end(block.key)

    def _first_end(self, way: Sequence[Block]) -> Block | None:
        """The first block with a snapshot that these begin with: one of them, or a tail."""
        for block in way:
            after = self._below.get(block.parent, {}).values()
            ends = [each for each in after if each.has_state and begins(each.tokens, block.tokens)]
            if ends:
                return min(ends, key=lambda each: each.count)
        return None

    # ---- what is found ---------------------------------------------------------------------

    def whole(self, ids: TokenIds) -> list[Block]:
        """The whole blocks that these tokens begin with."""
        way, parent = list[Block](), self._root
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            block = self._held.get(key_of(parent, ids[start : start + BLOCK]))
            if block is None:
                break
            way.append(block)
            parent = block.key
        return way

    def key_after(self, way: Sequence[Block]) -> str:
        """The key that blocks after these follow."""
        return way[-1].key if way else self._root

    def known(self, ids: TokenIds) -> int:
        """How many of these tokens have run in what is held."""
        way = self.whole(ids)
        at = BLOCK * len(way)
        return at + self._nearest(self.key_after(way), ids[at:], None)[0]

    def tail(self, parent: str, rest: TokenIds) -> Block | None:
        """A block after a key that has all of these tokens; if a sequence cannot go on from inside
        of it, one that ends with them."""
        if not self.any_length:
            return self._held.get(key_of(parent, rest))
        after = self._below.get(parent, {}).values()
        return next((each for each in after if begins(rest, each.tokens)), None)

    def beginnings(self, block: Block) -> list[Block]:
        """The tails that a block begins with, which are of no use beside it."""
        if not self.any_length:
            return []
        after = self._below.get(block.parent, {}).values()
        return [each for each in after if each.count < BLOCK and begins(each.tokens, block.tokens)]

    def find(self, ids: TokenIds, disk: Disk | None = None) -> Chain:
        """The longest beginning of these tokens that a sequence can go on from; with a ``disk``, of
        what is there as well."""
        best, way, parent = Chain(0), list[Entry](), self._root
        while True:
            rest = ids[BLOCK * len(way) :]
            if not self.any_length and (end := self._end(parent, rest, disk)) is not None:
                best = Chain(end.stop, (*way, end))
            whole: Entry | None = None
            if len(rest) >= BLOCK:
                key = key_of(parent, rest[:BLOCK])
                whole = self._held.get(key) or (disk.get(key) if disk is not None else None)
            if whole is None:
                break
            way.append(whole)
            parent = whole.key
        common, near = self._nearest(parent, rest, disk)
        length = BLOCK * len(way) + common
        if self.any_length:
            return Chain(length, (*way, *near[: bool(common)]))
        if length > best.length and (beyond := self._beyond(near, length, disk)):
            inside = 1 if common else 0  # the first one has some of the tokens
            return Chain(length, (*way, *beyond[:inside]), tuple(beyond[inside:]))
        return best

    def _after(self, parent: str, disk: Disk | None) -> list[Entry]:
        """The blocks that follow a key; of those in memory without their snapshot the files."""
        held: dict[str, Entry] = {**self._below.get(parent, {})}
        for file in [] if disk is None else disk.below(parent):
            if file.key not in held or file.has_state > held[file.key].has_state:
                held[file.key] = file
        return list(held.values())

    def _end(self, parent: str, rest: TokenIds, disk: Disk | None) -> Entry | None:
        """The longest block with a snapshot that begins these tokens."""
        ends = [each for each in self._after(parent, disk) if each.has_state]
        for count in sorted({each.count for each in ends if each.count <= len(rest)})[::-1]:
            key = key_of(parent, rest[:count])
            if (end := next((each for each in ends if each.key == key), None)) is not None:
                return end
        return None

    def _nearest(self, parent: str, rest: TokenIds, disk: Disk | None) -> tuple[int, list[Entry]]:
        """The most tokens that these have in common with a block that follows a key, and all blocks
        of which that is true. Files are opened for that last, and few of them."""
        after = self._after(parent, disk)
        if not len(rest):
            return 0, after
        most, near, opened = 0, list[Entry](), 0
        for each in after:
            tokens = each.tokens
            if isinstance(each, File) and tokens is None and disk is not None:
                opened += 1
                if most < len(rest) and opened <= OPENED:
                    tokens = disk.tokens_of(each)
            if tokens is None:
                continue
            more = most < min(len(rest), len(tokens)) and tokens[most] == rest[most]
            if self.any_length and not more:  # one is enough
                continue
            common = in_common(tokens, rest)
            if common > most:
                most, near = common, []
            if common == most:
                near.append(each)
        return most, near

    def _beyond(self, roots: Iterable[Entry], length: int, disk: Disk | None) -> list[Entry]:
        """The way from one of these blocks, itself included, to the nearest one below whose
        snapshot can be trimmed to ``length`` tokens."""
        ways = deque([each] for each in roots if self._fresh.can_undo(each.stop))
        while ways:
            way = ways.popleft()
            end = way[-1]
            if end.has_state and (isinstance(end, File) or end.serves(length)):
                return way
            after = self._after(end.key, disk)
            ways += [[*way, each] for each in after if self._fresh.can_undo(each.stop)]
        return []


def different(sizes: Sequence[Footprint]) -> list[Footprint]:
    """The footprints of parts of a model, if these are not equally large.

    Raises ``LoadError`` if what one part can take back or go on from, another one could not.
    """
    parts = {replace(each, weights=0) for each in sizes}
    if len({(not each.fixed, *sorted({w for _, w in each.windows})) for each in parts}) > 1:
        raise LoadError(
            "the parts of this model have layers of different kinds, so that they cannot keep the"
            " same prefixes; use another number of machines, or fewer"
        )
    return list(parts) if len(parts) > 1 else []
