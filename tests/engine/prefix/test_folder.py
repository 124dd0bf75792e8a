"""What is written to a folder comes back from it to the bit, or not at all."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.engine.kv.alone import Alone
from mlxgen.engine.kv.layers import leaves, sliceable
from mlxgen.engine.prefix.entry import CELL, Entry
from mlxgen.engine.prefix.folder import Folder
from mlxgen.engine.prefix.piece import Piece
from mlxgen.engine.prefix.segments import Segment, Snapshot
from tests.fakes.architectures import VOCAB, cache_kinds

PLENTY = 1 << 40


def piece_of(kv: Alone, entry: Entry) -> tuple[Segment, Snapshot | None]:
    segment = Segment.of(kv.caches, entry.start, entry.stop)
    snapshot = Snapshot.of(kv.caches, entry.stop) if entry.has_state else None
    mx.eval(segment.arrays(), snapshot.arrays() if snapshot is not None else [])
    return segment, snapshot


def bits(array: mx.array) -> bytes:
    return bytes(memoryview(array))  # type: ignore[arg-type]


def arrays_of(piece: Piece) -> list[mx.array]:
    return [*piece.segment.arrays(), *(piece.snapshot.arrays() if piece.snapshot else [])]


@pytest.mark.parametrize("name", cache_kinds())
def test_pieces_of_every_cache_type_come_back_to_the_bit(name: str, tmp_path: Path) -> None:
    model, make = cache_kinds()[name]()
    length = CELL + 20
    ids = [int(t) for t in np.random.default_rng(3).integers(0, VOCAB, length)]
    kv = Alone(make)
    for part in (ids[:200], ids[200:]):
        kv.forward(model, mx.array([part]))
        mx.eval(kv.arrays())
    kinds = [sliceable(leaf) for leaf in leaves(make())]
    folder = Folder(tmp_path, PLENTY, make=make, model=model)
    assert folder.find(ids) == []
    written = folder.missing(ids, has_state=True)
    assert [entry.stop for entry in written] == [*([CELL] if any(kinds) else []), length]
    assert written[-1].has_state is not all(kinds)
    pieces = [piece_of(kv, entry) for entry in written]
    for entry, (segment, snapshot) in zip(written, pieces, strict=True):
        assert folder.write(entry, segment, snapshot)
    assert folder.missing(ids, has_state=True) == []

    other = Folder(tmp_path, PLENTY, make=make, model=model)
    found = other.find([*ids, 1, 2])
    assert found == written and all(entry.nbytes for entry in found)
    for entry, (segment, snapshot) in zip(found, pieces, strict=True):
        piece = other.read(entry)
        assert piece is not None and (piece.start, piece.stop) == (entry.start, entry.stop)
        expected = [*segment.arrays(), *(snapshot.arrays() if snapshot else [])]
        for a, b in zip(arrays_of(piece), expected, strict=True):
            assert a.dtype == b.dtype and bits(a) == bits(b)
        if snapshot is not None:
            assert piece.snapshot is not None and piece.snapshot.length == length
