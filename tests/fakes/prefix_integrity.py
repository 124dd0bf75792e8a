"""What holds of a prefix cache whatever was done with it."""

from __future__ import annotations

import mlx.core as mx

from mlxgen.engine.prefix.cache import PrefixCache


def check_integrity(cache: PrefixCache) -> None:
    """Assert the invariants of a cache and of its tree; looks at every array."""
    tree = cache._tree
    nodes = list(tree.nodes())
    held: dict[int, mx.array] = {}
    for node in nodes:
        assert node.parent is not None and len(node.tokens) > 0
        assert node.parent.children[int(node.tokens[0])] is node
        assert node.start == node.parent.depth
        assert node.segment.count == len(node.tokens) <= tree.block
        assert node.segment.is_whole()
        kept = node.snapshot.arrays() if node.snapshot is not None else []
        held.update({id(array): array for array in [*node.segment.arrays(), *kept]})
        if tree.any_length:
            assert node.snapshot is None
        else:
            assert node.children or node.snapshot is not None, "a leaf that is of no use"
    nbytes = sum(array.nbytes for array in held.values())
    exact = len(tree.sizes._parts) < 2
    assert nbytes <= cache.nbytes <= cache.max_bytes and (nbytes == cache.nbytes or not exact)
    listed = {rank: priority for priority, _, rank in tree._order if rank in tree._ranked}
    assert set(tree._ranked.values()) <= set(nodes), "a node that is gone is kept alive"
    for node in nodes:
        if tree.any_length and node.children:
            assert node.rank not in tree._ranked
        elif node.snapshot is not None or tree.any_length:
            assert tree._ranked[node.rank] is node
            assert listed[node.rank] <= tree._priority(node), "it would go too late"
