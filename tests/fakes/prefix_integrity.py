"""What holds of the blocks in memory whatever was done with them."""

from __future__ import annotations

from mlxgen.engine.prefix import blocks as blocks_file
from mlxgen.engine.prefix.store import BlockStore


def check_integrity(store: BlockStore) -> None:
    """Assert the invariants of a store; looks at every array."""
    most: int = vars(blocks_file)["BLOCK"]  # which a test may have changed
    blocks = list(store._blocks)
    seen = set[str]()
    for block in reversed(blocks):  # what was used last first
        assert store._blocks.get(block.key) is block
        assert 0 < block.count <= most and block.start % most == 0 and block.is_whole()
        assert block.start == 0 or block.parent in seen, "it is used later than what leads to it"
        if block.snapshot is not None:
            assert not store.any_length and block.snapshot.length == block.stop
        seen.add(block.key)
    assert sum(map(len, store._blocks._below.values())) == len(blocks) == len(seen)
    held = {id(array): array.nbytes for block in blocks for array in block.arrays()}
    assert sum(block.size for block in blocks) == store.nbytes <= store.max_bytes
    assert sum(held.values()) == store.nbytes or store._blocks._sizes
    assert sum(held.values()) <= store.nbytes
