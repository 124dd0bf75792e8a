"""A radix tree of token sequences, with what a model's layers hold of each run.

Owns the nodes, what each of them holds, and the order in which they are evicted. Must never know
a model, or how much is too much: its owner says when to evict. Invariant: the common prefix of two
sequences is in the tree once; ``nbytes`` is the sum of what the nodes hold, as ``sizes`` count it;
every leaf can be used.

A node is a run of tokens (an *edge*) after those of its parent, of at most ``block`` tokens. So
cutting an edge in two copies a bounded number of bytes, and a long sequence that nobody uses is
evicted piece by piece, from its end. There are two kinds of tree:

- ``any_length``: every layer is sliceable, so any prefix of any sequence can be taken.
- Otherwise some layers have their state only in snapshots, at the ends of the sequences that
  were inserted. A prefix can be taken if it has a snapshot, or one can be trimmed to it.

What goes first is what is of least use for its bytes. Whoever needs it again starts from the
nearest place above it, so its priority is that many tokens divided by the bytes that its going
frees, plus the clock of its last use. The clock stands at the highest priority that was evicted:
so what is not used comes to be the lowest in the end, but the end of a long system prompt outlives
the ends of many short turns. (GreedyDual-Size: Cao and Irani, "Cost-Aware WWW Proxy Caching
Algorithms", 1997.) In the first kind of tree, every leaf has as many tokens for its bytes, so the
least recently used leaf goes first. In the second kind a snapshot goes, and with it the nodes that
lead to no other one. A place that all have gone on from in the same way is asked for again less
often than the end of a sequence, or than one where sequences part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple, TypeAlias

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ...tokens import Token
from .segments import Segment, Snapshot
from .sizes import Sizes

TokenIds: TypeAlias = npt.NDArray[np.int64]  # as wide as those of patches of images

PASSED = 0.25  # of its worth is left to a place that all have gone on from in the same way
BLOCK = 1024  # the most tokens of a node: 2 to 128 MiB, from a small model to a large one


def as_ids(tokens: Sequence[Token] | TokenIds) -> TokenIds:
    return np.asarray(tokens, dtype=np.int64)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Node:
    """``tokens`` after those of ``parent``; ``depth`` tokens lead to its end.

    ``used`` is the tree's clock when it was last used, and which use that was. ``rank`` is the
    number of its place in the order of eviction, if it has one. ``computed``: what it holds is
    known to be. ``saved``: what it and the nodes above it hold was written to disk.
    """

    tokens: TokenIds
    segment: Segment
    parent: Node | None
    depth: int
    snapshot: Snapshot | None = None
    children: dict[Token, Node] = field(default_factory=dict)
    used: tuple[float, int] = (0.0, 0)
    rank: int = 0
    computed: bool = False
    saved: bool = False

    @property
    def start(self) -> int:
        return self.depth - len(self.tokens)

    @property
    def nbytes(self) -> int:
        return self.segment.nbytes + (self.snapshot.nbytes if self.snapshot is not None else 0)

    def arrays(self) -> list[mx.array]:
        """All that it holds."""
        kept = self.snapshot.arrays() if self.snapshot is not None else []
        return [*self.segment.arrays(), *kept]

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one."""
        found = []
        node = self
        while node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]


class Place(NamedTuple):
    """Where a walk ended: ``length`` tokens were found, the last of them in ``node``."""

    node: Node
    length: int


class Found(NamedTuple):
    """What the caches of ``length`` tokens are made of; ``holder`` is the node to touch."""

    length: int
    runs: list[tuple[Segment, int]]
    snapshot: Snapshot | None
    holder: Node


class PrefixTree:
    """See the module. ``leaving`` is called with a node that is about to be evicted."""

    def __init__(
        self,
        *,
        any_length: bool,
        block: int = BLOCK,
        leaving: Callable[[Node], object] = lambda node: None,
        sizes: Sizes | None = None,
    ) -> None:
        self.any_length = any_length
        self.sizes = sizes or Sizes()
        self.leaving = leaving
        self.block = block
        self.nbytes = 0
        self.root = Node(as_ids([]), Segment((), 0), None, 0)
        self._clock = 0.0  # the highest priority that was evicted
        self._numbers = count(1)  # of uses and ranks
        # Priority, use and rank of nodes, the lowest first. A priority may have risen since, and a
        # node may have another rank now: then this one is no longer among ``_ranked``.
        self._order: list[tuple[float, int, int]] = []
        self._ranked: dict[int, Node] = {}

    def walk(self, ids: TokenIds) -> Place:
        """Go down as far as the tree holds ``ids``."""
        node, length = self.root, 0
        while length < len(ids):
            child = node.children.get(int(ids[length]))
            if child is None:
                break
            common = _common(child.tokens, ids[length:])
            node, length = child, length + common
            if common < len(child.tokens):
                break
        return Place(node, length)

    def find(self, ids: TokenIds, limit: int) -> Found | None:
        """As many of the first ``limit`` tokens of ``ids`` as can be taken."""
        node, length = self.walk(ids[:limit])
        if length == 0:
            return None
        if self.any_length:
            return Found(length, _runs(node, length), None, node)
        below = min(_snapshots([node]), key=lambda each: each.depth)  # the easiest to trim
        if below.snapshot is not None and below.snapshot.serves(length):
            return Found(length, _runs(node, length), below.snapshot, below)
        for holder in reversed(node.path()[:-1]):
            if holder.snapshot is not None:
                return Found(holder.depth, _runs(holder, holder.depth), holder.snapshot, holder)
        return None

    def cost(self, place: Place) -> int:
        """The bytes of the segments that lead to a place, which a sequence there needs."""
        return sum(
            self.sizes.of_first(segment, count)
            for segment, count in _runs(place.node, place.length)
        )

    def node_at(self, place: Place) -> Node:
        """The node that ends at a place; splits an edge if the place is inside it."""
        node = place.node
        if place.length == node.depth:
            return node
        parent, at = node.parent, place.length - node.start
        assert parent is not None and 0 < at < len(node.tokens)
        first, rest = node.segment.split(at)
        head = Node(node.tokens[:at].copy(), first, parent, place.length, used=node.used)
        head.saved, node.computed = node.saved, False  # both are copies
        parent.children[int(head.tokens[0])] = head
        node.tokens, node.segment, node.parent = node.tokens[at:].copy(), rest, head
        head.children[int(node.tokens[0])] = node
        return head

    def attach(self, parent: Node, ids: TokenIds, segment: Segment) -> Node:
        """A new node below ``parent``, whose children must not start with the same token."""
        node = Node(ids.copy(), segment, parent, parent.depth + len(ids))
        assert int(ids[0]) not in parent.children
        parent.children[int(ids[0])] = node
        self.nbytes += self.sizes.of(segment)
        self._rank(parent)  # no longer a leaf
        return node

    def remember(self, node: Node, snapshot: Snapshot) -> None:
        """Keep a snapshot at the end of a node that has none."""
        assert node.snapshot is None and node.depth == snapshot.length
        node.snapshot = snapshot
        node.computed = node.saved = False
        self.nbytes += self.sizes.of(snapshot)
        for below in _snapshots(node.children.values()):  # of less use now
            self._rank(below)

    def touch(self, node: Node) -> None:
        """Note that a node was used just now; without snapshots, all nodes that lead to it were."""
        for used in reversed(node.path()) if self.any_length else (node,):
            used.used = self._clock, next(self._numbers)
        self._rank(node)

    def evict(self, limit: int, keep: Node | None = None) -> None:
        """Drop what is of least use until at most ``limit`` bytes are held, but not ``keep``."""
        while self.nbytes > limit and self._order:
            priority, _, rank = heappop(self._order)
            node = self._ranked.pop(rank, None)
            if node is None or node is keep:
                continue
            if priority < self._priority(node):  # it has risen
                self._rank(node)
                continue
            self._clock = max(self._clock, priority)
            self.leaving(node)
            self.drop(node)
        if keep is not None:
            self._rank(keep)

    def places(self) -> list[Node]:
        """The nodes that a sequence can go on from, in the order of eviction if nothing is used
        meanwhile."""
        found = [node for node in self.nodes() if self._is_place(node)]
        if self.any_length:
            return sorted(found, key=lambda node: node.used)
        return sorted(found, key=lambda node: (self._priority(node), node.used[1]))

    def drop(self, node: Node) -> None:
        """Drop a leaf; with snapshots, a node's snapshot and all nodes that then lead to none."""
        assert not (self.any_length and node.children)
        self._ranked.pop(node.rank, None)
        if node.snapshot is not None:
            self.nbytes -= self.sizes.of(node.snapshot)
            node.snapshot = None
        while node.parent is not None and not node.children:
            parent = node.parent
            del parent.children[int(node.tokens[0])]
            node.parent = None
            self.nbytes -= self.sizes.of(node.segment)
            node = parent
            if self._is_place(node):
                break
        while len(node.children) == 1 and not self._is_place(node):
            (node,) = node.children.values()
        self._rank(node)  # a leaf now, or one that frees more

    def uproot(self, node: Node) -> None:
        """Drop a node and all below it, as far as they are still there."""
        below = [node]
        for each in below:
            below.extend(each.children.values())
        for each in reversed(below):
            if each.parent is not None:
                self.drop(each)

    def clear(self) -> None:
        self.root.children.clear()
        self._order.clear()
        self._ranked.clear()
        self.nbytes = 0

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, in no order."""
        waiting = list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            yield node

    def _is_place(self, node: Node) -> bool:
        """Whether a sequence can go on from the end of a node."""
        return self.any_length or node.snapshot is not None

    def _priority(self, node: Node) -> float:
        """The lower, the sooner a node goes; infinite if nothing can be dropped with it."""
        freed = self.sizes.of(node.snapshot) if node.snapshot is not None else 0
        above, is_end = node, not node.children and self._is_place(node)
        while above.parent is not None and (above is node or not self._is_place(above)):
            freed += self.sizes.of(above.segment) if is_end else 0
            above = above.parent
            is_end = is_end and len(above.children) == 1
        if not freed:
            return math.inf
        saved = (node.depth - above.depth) / freed
        return node.used[0] + (saved * PASSED if len(node.children) == 1 else saved)

    def _rank(self, node: Node) -> None:
        """Give a node its place in the order of eviction."""
        self._ranked.pop(node.rank, None)
        priority = self._priority(node)
        if priority == math.inf:
            return
        node.rank = next(self._numbers)
        self._ranked[node.rank] = node
        heappush(self._order, (priority, node.used[1], node.rank))
        if len(self._order) > 2 * len(self._ranked) + 64:  # most of them have another rank now
            self._order = [entry for entry in self._order if entry[-1] in self._ranked]
            heapify(self._order)


def _common(left: TokenIds, right: TokenIds) -> int:
    """The length of the common prefix of two runs."""
    size = min(len(left), len(right))
    different = left[:size] != right[:size]
    first = int(different.argmax()) if size else 0
    return first if size and different[first] else size


def _runs(node: Node, length: int) -> list[tuple[Segment, int]]:
    """The segments of the first ``length`` tokens towards a node, with the tokens of each."""
    return [(part.segment, min(part.depth, length) - part.start) for part in node.path()]


def _snapshots(nodes: Iterable[Node]) -> Iterator[Node]:
    """The first nodes with a snapshot at or below each of these."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.snapshot is not None:
            yield node
        else:
            waiting.extend(node.children.values())
