"""Pieces whose content tells which tokens they hold, so that what a folder gives can be checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from mlxgen.engine.kv.layers import leaves, sliceable
from mlxgen.engine.prefix.entry import Entry
from mlxgen.engine.prefix.folder import Folder
from mlxgen.engine.prefix.segments import Segment, Snapshot, rebuilt
from tests.fakes.filled_caches import Make, check, holding

PLENTY = 1 << 40


def parts_of(make: Make, ids: Sequence[int], entry: Entry) -> tuple[Segment, Snapshot | None]:
    """What caches that hold the tokens themselves would keep of an entry's."""
    caches = holding(make, tuple(ids[: entry.stop])).caches
    segment = Segment.of(caches, entry.start, entry.stop)
    snapshot = Snapshot.of(caches, entry.stop) if entry.has_state else None
    mx.eval(segment.arrays(), snapshot.arrays() if snapshot is not None else [])
    return segment, snapshot


def keep(folder: Folder, make: Make, ids: Sequence[int], *, has_state: bool = True) -> int:
    """Write what is missing of the tokens; returns how many pieces were written."""
    missing = folder.missing(ids, has_state=has_state)
    return sum(folder.write(entry, *parts_of(make, ids, entry)) for entry in missing)


def restored(folder: Folder, make: Make, ids: Sequence[int], most: int | None = None) -> int:
    """Read what there is of the tokens, and check all of it; returns how many there are.

    A piece that is gone when it is read ends the chain.
    """
    pieces = []
    for entry in folder.find(ids, most):
        piece = folder.read(entry)
        if piece is None:
            break
        assert piece.tokens.tolist() == list(ids[entry.start : entry.stop])
        pieces.append(piece)
    if not pieces:
        return 0
    stop, snapshot = pieces[-1].stop, pieces[-1].snapshot
    if snapshot is None and not all(map(sliceable, leaves(make()))):
        return 0  # the piece with the state is gone
    runs = [(piece.segment, len(piece.tokens)) for piece in pieces]
    check(rebuilt(make, runs, snapshot, stop, stop), tuple(ids[:stop]))
    return stop


def files_in(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors"))


def bits(array: mx.array) -> bytes:
    return bytes(memoryview(array))  # type: ignore[arg-type]
