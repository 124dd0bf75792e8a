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
        assert bool(block.snapshot) == block.has_state and not (
            block.has_state and store.any_length
        )
        seen.add(block.key)
    known = store._blocks._known
    below = [each for after in store._blocks._below.values() for each in after.values()]
    assert {each.key: each for each in below} == known and len(below) == len(known)
    assert len(blocks) == len(seen)
    files = [block.file.nbytes for block in known.values() if block.file is not None]
    assert sum(files) == store._blocks.disk_bytes
    held = {id(array): array.nbytes for block in blocks for array in block.arrays()}
    assert sum(block.size for block in blocks) == store.nbytes <= store.max_bytes
    assert sum(held.values()) == store.nbytes or store._blocks.sizes
    assert sum(held.values()) <= store.nbytes
