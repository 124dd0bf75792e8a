"""Block stores in memory and over a folder, and what they give, checked token by token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlxgen.engine.prefix.block_file import Layout
from mlxgen.engine.prefix.disk import Disk
from mlxgen.engine.prefix.store import BlockStore
from tests.fakes.filled_caches import Ids, Make, check, holding, plain_layers, taken
from tests.fakes.prefix_integrity import check_integrity

PLENTY = 1 << 40


def store_in(
    path: Path,
    make: Make = plain_layers,
    *,
    memory: int = PLENTY,
    disk: int = PLENTY,
    model: Any = None,
) -> BlockStore:
    """A new process on a folder, as it were: nothing is in memory."""
    return BlockStore(make, memory, model=model, folder=Disk(path, disk, Layout(make, model)))


def keep(store: BlockStore, make: Make, ids: Ids, room: int | None = None) -> None:
    """Keep what caches that hold the tokens themselves have of them."""
    store.keep(ids, holding(make, ids), room=room)


def write(store: BlockStore, make: Make, ids: Ids) -> int:
    """Have the tokens in the folder; returns how many blocks were written, and drops all others."""
    before = store.disk.pieces_written
    store.clear()
    keep(store, make, ids)
    assert store.flush(20)
    store.clear()
    return store.disk.pieces_written - before


def gives(store: BlockStore, ids: Sequence[int]) -> int:
    """How many of these tokens a store has once they are restored, and that they are right."""
    store.restore((*ids, 0))
    check_integrity(store)
    kv = taken(store, (*ids, 0))
    if kv is None:
        return 0
    check(kv, tuple(ids[: kv.length]))
    return kv.length


def files_in(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors"))


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in files_in(path))


def come(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def sequence(count: int, first: int = 0) -> Ids:
    return tuple((first + i * i) % 1000 for i in range(count))
