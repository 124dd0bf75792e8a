"""A process may be killed, or reach a limit, while it writes; others may write at the same time."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import resource
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from mlxgen.engine.prefix import disk as disk_file
from mlxgen.engine.prefix.block import BLOCK
from tests.effort import tries
from tests.fakes.filled_caches import plain_layers

from .kit import PLENTY, files_in, gives, size_of, store_in, write

_HERE = multiprocessing.get_context("forkserver")  # so each child starts with all modules
_HERE.set_forkserver_preload([__name__])


def some(chance: random.Random) -> range:
    """One of a few sequences, so that most of what is written is there already."""
    first = chance.randrange(6)
    return range(first, first + chance.choice([9, BLOCK, 3 * BLOCK + 5]))


def write_on(path: Path, max_bytes: int, seed: int, pipe: Connection) -> None:
    """Write until somebody ends this process, and sometimes remove all to write it again."""
    chance, store = random.Random(seed), store_in(path, disk=max_bytes)
    pipe.send(True)
    while True:
        write(store, plain_layers, tuple(some(chance)))
        store.clear()
        gives(store, some(chance))
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
    store = store_in(path)
    assert store.disk.disk_bytes == size_of(path)
    for first in range(6):
        gives(store, range(first, first + 3 * BLOCK + 5))
        store.clear()
    assert store.disk.disk_bytes == size_of(path)  # none was broken
    ids = tuple(some(chance))
    write(store, plain_layers, ids)
    assert gives(store, ids) == len(ids)
    monkeypatch.setattr(disk_file, "_ABANDONED", 0.0)
    store_in(path)
    assert sorted(path.iterdir()) == files_in(path)


@pytest.mark.slow
def test_processes_that_are_killed_while_they_write_leave_nothing_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(tries(100)):
        _dies_and_nothing_is_wrong(tmp_path, seed, monkeypatch)


@pytest.mark.slow
def test_processes_that_write_and_evict_at_once_never_give_anything_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_file, "_RESCAN", 0.0)
    monkeypatch.setattr(disk_file, "_SHARE", 0)
    size = 60_000
    mine = store_in(tmp_path, disk=size)
    chance, found = random.Random(1), list[int]()
    with writing(tmp_path, size, 1), writing(tmp_path, size, 2):
        for _ in range(tries(200)):
            ids = tuple(some(chance))
            write(mine, plain_layers, ids)
            found.append(gives(mine, ids))
    assert any(found)
    assert store_in(tmp_path, disk=size).disk.disk_bytes <= size


def write_little(path: Path, pipe: Connection) -> None:
    """Write with a system that stops in the middle of a file."""
    store, ids = store_in(path), tuple(range(2 * BLOCK))
    write(store, plain_layers, ids[:5])
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    write(store, plain_layers, (7, *ids))
    pipe.send((gives(store, ids), [file.name for file in path.iterdir()]))


def test_a_disk_that_is_full_in_the_middle_of_a_file_leaves_no_part_of_it(tmp_path: Path) -> None:
    mine, theirs = _HERE.Pipe()
    child = _HERE.Process(target=write_little, args=(tmp_path, theirs))
    child.start()
    assert mine.poll(30)
    left, names = mine.recv()
    child.join()
    assert left == 5
    assert names == [file.name for file in files_in(tmp_path)] and len(names) == 1
