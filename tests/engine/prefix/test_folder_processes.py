"""A process may be killed, or reach a limit, while it writes; others may write at the same time."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import resource
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache

from mlxgen.engine.prefix import folder as folder_file
from mlxgen.engine.prefix.entry import CELL, Entry
from mlxgen.engine.prefix.folder import Folder
from mlxgen.engine.prefix.segments import Segment
from tests.effort import tries

from .folders import PLENTY, files_in

_WIDTH = 512  # so that writing a piece takes some milliseconds
_HERE = multiprocessing.get_context("forkserver")  # so each child starts with all modules
_HERE.set_forkserver_preload([__name__])


def layers() -> list[KVCache]:
    return [KVCache()]


def of(entry: Entry) -> Segment:
    """Arrays that nobody would take for those of other tokens."""
    numbers = np.arange(_WIDTH, dtype=np.float32)
    keys = mx.array(entry.tokens.astype(np.float32)[None, None, :, None] * 1000 + numbers)
    return Segment((((keys, keys),),), len(entry.tokens))


def sequence(chance: random.Random) -> range:
    """One of a few sequences, so that most of what is written is there already."""
    first = chance.randrange(6)
    return range(first, first + chance.choice([9, CELL, 3 * CELL + 5]))


def restored(folder: Folder, ids: Sequence[int]) -> int:
    """Read what there is of the tokens, and check all of it."""
    stop = 0
    for entry in folder.find(ids):
        piece = folder.read(entry)
        if piece is None:
            break
        for mine, wanted in zip(piece.segment.arrays(), of(entry).arrays(), strict=True):
            assert mx.array_equal(mine, wanted)
        stop = entry.stop
    return stop


def keep(folder: Folder, ids: Sequence[int]) -> None:
    for entry in folder.missing(ids):
        folder.write(entry, of(entry), None)


def write_on(path: Path, max_bytes: int, seed: int, pipe: Connection) -> None:
    """Write until somebody ends this process, and sometimes remove all to write it again."""
    chance, folder = random.Random(seed), Folder(path, max_bytes, make=layers)
    pipe.send(True)
    while True:
        keep(folder, sequence(chance))
        restored(folder, sequence(chance))
        if chance.random() < 0.1:
            for file in files_in(path):
                file.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path, max_bytes: int, seed: int) -> Iterator[BaseProcess]:
    mine, theirs = _HERE.Pipe()
    child = _HERE.Process(target=write_on, args=(path, max_bytes, seed, theirs))
    child.start()
    try:
        assert mine.poll(30) and mine.recv()
        yield child
    finally:
        child.kill()
        child.join()


def _dies_and_nothing_is_wrong(path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    with writing(path, PLENTY, seed):
        time.sleep(chance.random() * 0.03)
    folder = Folder(path, PLENTY, make=layers)
    assert folder.nbytes == sum(file.stat().st_size for file in files_in(path))
    for first in range(6):
        restored(folder, range(first, first + 3 * CELL + 5))
    assert folder.nbytes == sum(file.stat().st_size for file in files_in(path))  # none was broken
    ids = sequence(chance)
    keep(folder, ids)
    assert restored(folder, ids) == len(ids)
    monkeypatch.setattr(folder_file, "_ABANDONED", 0.0)
    Folder(path, PLENTY, make=layers)
    assert sorted(path.iterdir()) == files_in(path)


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_writes_leaves_nothing_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(tries(12)):
        _dies_and_nothing_is_wrong(tmp_path, seed, monkeypatch)


@pytest.mark.slow
def test_a_hundred_processes_that_are_killed_leave_nothing_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(100, 200):
        _dies_and_nothing_is_wrong(tmp_path, seed, monkeypatch)


@pytest.mark.slow
def test_processes_that_write_and_evict_at_once_never_give_anything_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_file, "_RESCAN", 0.0)
    monkeypatch.setattr(folder_file, "_SHARE", 0)
    size = 8 * CELL * _WIDTH * 8
    mine = Folder(tmp_path, size, make=layers)
    chance, found = random.Random(1), list[int]()
    with writing(tmp_path, size, 1), writing(tmp_path, size, 2):
        for _ in range(tries(200)):
            ids = sequence(chance)
            keep(mine, ids)
            found.append(restored(mine, ids))
    assert any(found)
    assert Folder(tmp_path, size, make=layers).nbytes <= size


def write_little(path: Path, pipe: Connection) -> None:
    """Write with a system that stops in the middle of a file."""
    folder = Folder(path, PLENTY, make=layers)
    ids = range(2 * CELL)
    keep(folder, ids[:5])
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    keep(folder, ids)
    pipe.send((restored(folder, ids), [file.name for file in path.iterdir()]))


def test_a_disk_that_is_full_in_the_middle_of_a_file_leaves_no_part_of_it(tmp_path: Path) -> None:
    mine, theirs = _HERE.Pipe()
    child = _HERE.Process(target=write_little, args=(tmp_path, theirs))
    child.start()
    assert mine.poll(30)
    left, names = mine.recv()
    child.join()
    assert left == 5
    assert names == [file.name for file in files_in(tmp_path)] and len(names) == 1
