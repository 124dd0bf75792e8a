"""Blocks whose content tells which tokens they hold, so that what a folder gives can be checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import mlx.core as mx

from mlxgen.engine.prefix.block import BLOCK, Block, Snapshot, as_ids
from mlxgen.engine.prefix.block_file import Layout
from mlxgen.engine.prefix.disk import Disk
from mlxgen.engine.prefix.store import BlockStore
from tests.fakes.filled_caches import Make, check, holding, plain_layers
from tests.fakes.prefix_integrity import check_integrity

PLENTY = 1 << 40


def disk_of(path: Path, make: Make = plain_layers, max_bytes: int = PLENTY) -> Disk:
    return Disk(path, max_bytes, Layout(make))


def blocks_of(disk: Disk, make: Make, ids: Sequence[int], *, ends: bool = True) -> Iterator[Block]:
    """What caches that hold the tokens themselves would keep of them; with ``ends``, a snapshot
    after the last one, if the layers need one."""
    parent = disk.layout.root
    for start in range(0, len(ids), BLOCK):
        stop = min(start + BLOCK, len(ids))
        kv = holding(make, tuple(ids[:stop]))
        snapshot = Snapshot.of(kv) if kv.needs_snapshots and ends and stop == len(ids) else None
        (layers,) = kv.parts([start, stop])
        block = Block(parent, start, as_ids(ids[start:stop]), layers, snapshot)
        mx.eval(block.arrays())
        parent = block.key
        yield block


def keep(disk: Disk, make: Make, ids: Sequence[int], *, ends: bool = True) -> int:
    """Write what is missing of the tokens; returns how many blocks were written."""
    before = disk.written
    for block in blocks_of(disk, make, ids, ends=ends):
        disk.write(block)
    return disk.written - before


def restored(disk: Disk, make: Make, ids: Sequence[int]) -> int:
    """Read what there is of the tokens, and check all of it; returns how many there are."""
    return gives(BlockStore(make, PLENTY, folder=disk), ids)


def gives(store: BlockStore, ids: Sequence[int]) -> int:
    """How many of these tokens a store has once they are restored, and that they are right."""
    store.restore((*ids, 0))
    check_integrity(store)
    kv = store.take((*ids, 0))
    if kv is None:
        return 0
    check(kv.caches, tuple(ids[: kv.length]))
    return kv.length


def files_in(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors"))


def bits(array: mx.array) -> bytes:
    return bytes(memoryview(array))  # type: ignore[arg-type]
