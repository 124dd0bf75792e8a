"""A radix tree of token sequences, with what a model's layers hold of each run.

Owns the nodes, what each of them holds, and the order in which they were last used. Must
never know a model, or how much is too much: its owner says when to evict. Invariant: the
common prefix of two sequences is in the tree once; ``nbytes`` is the sum of what the nodes
hold; every leaf can be used.

A node is a run of tokens (an *edge*) after those of its parent, of at most ``block`` tokens. So
cutting an edge in two copies a bounded number of bytes, and a long sequence that nobody uses is
evicted piece by piece, from its end. There are two kinds of tree:

- ``any_length``: every layer is sliceable, so any prefix of any sequence can be taken.
- Otherwise some layers have their state only in snapshots, at the ends of the sequences that
  were inserted. A prefix can be taken if it has a snapshot, or one can be trimmed to it.

The order of use needs no clock. In the first kind of tree, a use of a node is followed by a use of
all nodes above it, so the least recently used one is a leaf. In the second kind only the nodes
with a snapshot are ordered; with a snapshot go the nodes that lead to no other one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...tokens import Token
from .segments import Segment, Snapshot

TokenIds: TypeAlias = npt.NDArray[np.int64]  # as wide as those of patches of images

BLOCK = 1024  # the most tokens of a node: 2 to 128 MiB, from a small model to a large one


def as_ids(tokens: Sequence[Token]) -> TokenIds:
    return np.asarray(tokens, dtype=np.int64)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Node:
    """``tokens`` after those of ``parent``; ``depth`` tokens lead to its end."""

    tokens: TokenIds
    segment: Segment
    parent: Node | None
    depth: int
    snapshot: Snapshot | None = None
    children: dict[Token, Node] = field(default_factory=dict)

    @property
    def start(self) -> int:
        return self.depth - len(self.tokens)

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
    """See the module."""

    def __init__(self, *, any_length: bool, block: int = BLOCK) -> None:
        self.any_length = any_length
        self.block = block
        self.nbytes = 0
        self.root = Node(as_ids([]), Segment((), 0), None, 0)
        self._order: OrderedDict[Node, None] = OrderedDict()  # least recently used first

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
        below = _nearest_snapshot(node)
        if below.snapshot is not None and below.snapshot.serves(length):
            return Found(length, _runs(node, length), below.snapshot, below)
        for holder in reversed(node.path()[:-1]):
            if holder.snapshot is not None:
                return Found(holder.depth, _runs(holder, holder.depth), holder.snapshot, holder)
        return None

    def cost(self, place: Place) -> int:
        """The bytes of the segments that lead to a place, which a sequence there needs."""
        return sum(
            segment.nbytes // segment.count * count
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
        head = Node(node.tokens[:at].copy(), first, parent, place.length)
        parent.children[int(head.tokens[0])] = head
        node.tokens, node.segment, node.parent = node.tokens[at:].copy(), rest, head
        head.children[int(node.tokens[0])] = node
        if self.any_length:
            self._order[head] = None
        return head

    def attach(self, parent: Node, ids: TokenIds, segment: Segment) -> Node:
        """A new node below ``parent``, whose children must not start with the same token."""
        node = Node(ids.copy(), segment, parent, parent.depth + len(ids))
        assert int(ids[0]) not in parent.children
        parent.children[int(ids[0])] = node
        self.nbytes += segment.nbytes
        if self.any_length:
            self._order[node] = None
        return node

    def remember(self, node: Node, snapshot: Snapshot) -> None:
        """Keep a snapshot at the end of a node that has none."""
        assert node.snapshot is None and node.depth == snapshot.length
        node.snapshot = snapshot
        self.nbytes += snapshot.nbytes
        self._order[node] = None

    def touch(self, node: Node) -> None:
        """Note that a node was used just now, and so all nodes that lead to it."""
        if self.any_length:
            for used in reversed(node.path()):
                self._order.move_to_end(used)
        elif node.snapshot is not None:
            self._order.move_to_end(node)

    def evict(self, limit: int) -> None:
        """Drop the least recently used nodes until at most ``limit`` bytes are held."""
        while self.nbytes > limit and self._order:
            self.drop(next(iter(self._order)))

    def drop(self, node: Node) -> None:
        """Drop a leaf; with snapshots, a node's snapshot and all nodes that then lead to none."""
        assert not (self.any_length and node.children)
        self._order.pop(node, None)
        if node.snapshot is not None:
            self.nbytes -= node.snapshot.nbytes
            node.snapshot = None
        while node.parent is not None and not node.children:
            parent = node.parent
            del parent.children[int(node.tokens[0])]
            node.parent = None
            self.nbytes -= node.segment.nbytes
            if self.any_length or parent.snapshot is not None:
                break
            node = parent

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
        self.nbytes = 0

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, in no order."""
        waiting = list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            yield node


def _common(left: TokenIds, right: TokenIds) -> int:
    """The length of the common prefix of two runs."""
    size = min(len(left), len(right))
    different = left[:size] != right[:size]
    first = int(different.argmax()) if size else 0
    return first if size and different[first] else size


def _runs(node: Node, length: int) -> list[tuple[Segment, int]]:
    """The segments of the first ``length`` tokens towards a node, with the tokens of each."""
    return [(part.segment, min(part.depth, length) - part.start) for part in node.path()]


def _nearest_snapshot(node: Node) -> Node:
    """The shallowest node at or below ``node`` with a snapshot, which is the easiest to trim.

    There always is one, as every leaf of such a tree has a snapshot.
    """
    best: Node | None = None
    waiting = [node]
    while waiting:
        candidate = waiting.pop()
        if best is not None and candidate.depth >= best.depth:
            continue
        if candidate.snapshot is not None:
            best = candidate
        else:
            waiting.extend(candidate.children.values())
    assert best is not None
    return best
