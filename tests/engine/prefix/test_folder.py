"""What is written to a folder comes back from it to the bit, or not at all."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from itertools import takewhile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from mlxgen.engine.kv.alone import Alone
from mlxgen.engine.kv.layers import leaves, sliceable
from mlxgen.engine.prefix import folder as folder_file
from mlxgen.engine.prefix import piece as piece_file
from mlxgen.engine.prefix.cache import PrefixCache
from mlxgen.engine.prefix.entry import CELL, Entry
from mlxgen.engine.prefix.folder import Folder
from mlxgen.engine.prefix.piece import Piece
from mlxgen.engine.prefix.segments import Segment, Snapshot
from mlxgen.errors import LoadError, OptionError
from mlxgen.loading.cache_dir import CacheDir
from tests.effort import tries
from tests.fakes.architectures import VOCAB, cache_kinds, random_model
from tests.fakes.filled_caches import Make, mixed_layers, plain_layers, state_layers

from .folders import PLENTY, bits, files_in, keep, parts_of, restored

LONG = tuple(range(2 * CELL + 20))


def folder_of(path: Path, make: Make = plain_layers, max_bytes: int = PLENTY) -> Folder:
    return Folder(path, max_bytes, make=make)


def filled(path: Path, make: Make = plain_layers) -> Folder:
    folder = folder_of(path, make)
    keep(folder, make, LONG)
    return folder


@pytest.fixture
def listing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_file, "_RESCAN", 0.0)
    monkeypatch.setattr(folder_file, "_SHARE", 0)


# ---- what comes back ---------------------------------------------------------------------------


def arrays_of(segment: Segment, snapshot: Snapshot | None) -> list[mx.array]:
    return [*segment.arrays(), *(snapshot.arrays() if snapshot else [])]


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, mx.float32) for name in cache_kinds()), ("plain", mx.bfloat16)]
)
def test_pieces_of_every_cache_type_come_back_to_the_bit(
    name: str, dtype: mx.Dtype, tmp_path: Path
) -> None:
    model, make = cache_kinds()[name]()
    model.set_dtype(dtype)
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
    kept: list[list[mx.array]] = []
    for entry in written:
        segment = Segment.of(kv.caches, entry.start, entry.stop)
        snapshot = Snapshot.of(kv.caches, entry.stop) if entry.has_state else None
        kept.append(arrays_of(segment, snapshot))
        mx.eval(kept[-1])
        assert folder.write(entry, segment, snapshot)
    assert folder.missing(ids, has_state=True) == []

    other = Folder(tmp_path, PLENTY, make=make, model=model)
    found = other.find([*ids, 1, 2])
    assert found == written
    assert sum(entry.nbytes for entry in found) == other.nbytes == folder.nbytes
    for entry, arrays in zip(found, kept, strict=True):
        piece = other.read(entry)
        assert piece is not None and (piece.start, piece.stop) == (entry.start, entry.stop)
        for a, b in zip(arrays_of(piece.segment, piece.snapshot), arrays, strict=True):
            assert (a.dtype, a.shape, bits(a)) == (b.dtype, b.shape, bits(b))


@pytest.mark.parametrize("make", [plain_layers, mixed_layers, state_layers])
def test_what_is_found_is_the_longest_beginning_that_was_kept(make: Make, tmp_path: Path) -> None:
    """Against all sequences that were kept, for random ones that part anywhere."""
    chance = random.Random(5)
    states = make is not plain_layers
    folder, kept = folder_of(tmp_path, make), list[tuple[int, ...]]()
    for _ in range(tries(60)):
        base = chance.choice(kept) if kept and chance.random() < 0.8 else ()
        start = chance.randrange(len(base) + 1)
        more = (chance.randrange(50) for _ in range(chance.choice([3, 100, CELL, 400])))
        ids = (*base[:start], *more)
        if chance.random() < 0.3:
            ids = ids[: max(CELL, len(ids) // CELL * CELL)]
        most = chance.choice([None, len(ids) - 1])
        wanted = ids[:most]
        ends = {0, *(len(one) for one in kept if one == wanted[: len(one)])}
        if not states:
            for one in kept:
                same = takewhile(lambda pair: pair[0] == pair[1], zip(one, wanted, strict=False))
                ends.add(len(list(same)) // CELL * CELL)
        assert restored(folder, make, ids, most) == max(ends)
        if chance.random() < 0.2:
            folder = folder_of(tmp_path, make)
        keep(folder, make, ids)
        kept.append(ids)
        assert restored(folder, make, ids) == len(ids)
        assert folder.missing(ids, has_state=True) == []


def test_sequences_share_the_pieces_before_the_place_where_they_part(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    assert [entry.start for entry in folder.missing((*LONG[: CELL + 9], 7))] == [CELL]
    assert keep(folder, plain_layers, (*LONG, *range(CELL))) == 2
    assert len(files_in(tmp_path)) == 5


def test_a_model_with_states_goes_on_from_states_only(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, mixed_layers)
    assert keep(folder, mixed_layers, LONG, has_state=False) == 2  # for states after these
    assert folder.find(LONG) == []
    assert keep(folder, mixed_layers, LONG[: CELL + 5]) == 1
    assert restored(folder, mixed_layers, LONG) == CELL + 5
    other = folder_of(tmp_path / "recurrent", state_layers)
    assert keep(other, state_layers, LONG, has_state=False) == 0
    assert keep(other, state_layers, LONG) == 1  # nothing of it is needed but its end
    assert restored(other, state_layers, (*LONG, 5)) == len(LONG)


def test_a_state_after_a_whole_cell_comes_into_its_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, mixed_layers)
    other = folder_of(tmp_path, mixed_layers)
    keep(folder, mixed_layers, LONG, has_state=False)
    assert keep(folder, mixed_layers, LONG[:CELL]) == 1
    assert folder.missing(LONG, has_state=False) == []
    assert len(files_in(tmp_path)) == 2
    assert keep(other, mixed_layers, LONG[: 2 * CELL]) == 2  # it did not know of the others
    assert restored(folder_of(tmp_path, mixed_layers), mixed_layers, LONG) == 2 * CELL
    assert len(files_in(tmp_path)) == 2
    assert folder_of(tmp_path, mixed_layers).nbytes == sum(
        file.stat().st_size for file in files_in(tmp_path)
    )


def test_patches_of_images_are_tokens_like_others(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    ids = (1, *(-(2**60) - i for i in range(300)), 2)
    kv = parts_of(plain_layers, range(302), folder.missing(range(302))[0])
    first, _ = folder.missing(ids)
    assert folder.write(first, *kv)
    piece = folder_of(tmp_path).read(first)
    assert piece is not None and piece.tokens.tolist() == list(ids[:CELL])
    assert folder.find((1, *(-(2**60) - i - 1 for i in range(300)), 2)) == []


# ---- files that are not what was written -------------------------------------------------------


def test_another_model_finds_nothing_but_counts_the_files(tmp_path: Path) -> None:
    folder = filled(tmp_path)

    model = random_model("llama")
    for other in (
        folder_of(tmp_path, mixed_layers),
        folder_of(tmp_path, lambda: [KVCache(), QuantizedKVCache(32, 8)]),
        Folder(tmp_path, PLENTY, make=lambda: [KVCache(), KVCache()], model=model),
    ):
        assert other.find(LONG) == []
        assert other.nbytes == folder.nbytes


def test_another_format_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    monkeypatch.setattr(folder_file, "FORMAT", "mlxgen prefix 99")
    assert folder_of(tmp_path).find(LONG) == []


def test_a_flipped_bit_or_a_missing_end_is_noticed_once_and_the_file_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(1)
    folder = filled(tmp_path, mixed_layers)
    entries = folder.find(LONG)
    for _ in range(tries(150)):
        entry = chance.choice(entries)
        path = tmp_path / str(entry.name)
        data = bytearray(path.read_bytes())
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        else:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        assert folder.read(entry) is None
        assert not path.exists()
        assert restored(folder, mixed_layers, LONG) == 0
        assert keep(folder, mixed_layers, LONG) == 1
        assert restored(folder, mixed_layers, LONG) == len(LONG)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "is removed" in record.message
    assert "save the prefix" not in record.message


def test_a_file_under_the_name_of_another_is_noticed(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    keep(folder, plain_layers, LONG[10:])
    for ids, others in ((LONG, LONG[10:]), (LONG[10:], LONG)):
        mine, other = folder.find(ids), folder.find(others)
        for entry, wrong in zip(mine, other, strict=True):
            data = (tmp_path / str(wrong.name)).read_bytes()
            (tmp_path / str(entry.name)).write_bytes(data)
            assert folder.read(entry) is None
        keep(folder, plain_layers, ids)


def test_a_saved_prefix_under_the_name_of_a_piece_is_noticed(tmp_path: Path) -> None:
    """It is whole and of the same model, but has no place in a chain."""
    folder = filled(tmp_path)
    entry = folder.find(LONG)[-1]
    segment, _ = parts_of(plain_layers, LONG, entry)
    piece = Piece(0, entry.tokens, segment, None)
    piece_file.write(tmp_path / str(entry.name), piece, folder._layout)
    assert folder.read(entry) is None


def test_a_piece_is_not_taken_for_a_saved_prefix(tmp_path: Path) -> None:
    for make in (plain_layers, mixed_layers):
        folder = folder_of(tmp_path / make.__name__, make)
        keep(folder, make, LONG)
        for entry in folder.find(LONG):
            path = tmp_path / make.__name__ / str(entry.name)
            if entry.start or make is mixed_layers:
                with pytest.raises(LoadError, match="part of a prefix"):
                    PrefixCache(make, PLENTY).load(path)
            else:
                assert PrefixCache(make, PLENTY).load(path) == CELL


def test_files_of_others_are_never_touched_or_counted(tmp_path: Path) -> None:
    mine = files_in(filled(tmp_path).path)
    names = ["notes.txt", "model.safetensors", "0" * 40 + ".safetensors", ".hidden.part"]
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 100_000)
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / f"{mine[0].name}.bak").mkdir()
    size = sum(path.stat().st_size for path in mine)
    folder = folder_of(tmp_path, max_bytes=size)
    assert folder.nbytes == size
    folder = folder_of(tmp_path, max_bytes=0)
    assert folder.nbytes == 0 and files_in(tmp_path) == sorted(
        tmp_path / name for name in names[1:3]
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*names, f"{mine[0].name}.bak"]
    )


def test_parts_that_a_dead_process_left_are_removed_when_they_are_old(tmp_path: Path) -> None:
    old, young = tmp_path / f".{'0' * 16}.part", tmp_path / f".{'1' * 16}.part"
    for path in (old, young):
        path.write_bytes(b"")
    os.utime(old, (1, 1))
    folder_of(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [young.name]


# ---- the limit ---------------------------------------------------------------------------------


def one_by_one(folder: Folder, *chains: tuple[int, ...]) -> None:
    """Keep chains, each long after the one before."""
    for i, ids in enumerate(chains):
        keep(folder, plain_layers, ids)
        for entry in folder.find(ids):
            os.utime(folder.path / str(entry.name), (i + 1, i + 1))


def test_the_least_recently_used_goes_first_also_after_a_restart(tmp_path: Path) -> None:
    chains = [tuple(range(i, i + CELL)) for i in range(5)]
    one_by_one(folder_of(tmp_path), *chains[:4])
    limit = folder_of(tmp_path).nbytes * 7 // 8
    assert restored(folder_of(tmp_path), plain_layers, chains[0]) == CELL  # used again
    folder = folder_of(tmp_path, max_bytes=limit)
    assert [len(folder.find(ids)) for ids in chains] == [1, 0, 1, 1, 0]
    assert keep(folder_of(tmp_path, max_bytes=limit), plain_layers, chains[4]) == 1
    folder = folder_of(tmp_path, max_bytes=limit)
    assert [len(folder.find(ids)) for ids in chains] == [0, 0, 1, 1, 1]
    assert folder.nbytes == sum(file.stat().st_size for file in files_in(tmp_path)) <= limit


def test_a_chain_goes_from_its_end(tmp_path: Path) -> None:
    ids = tuple(range(6 * CELL))
    keep(folder_of(tmp_path), plain_layers, ids)
    size = folder_of(tmp_path).nbytes
    for left in range(5, 0, -1):
        folder = folder_of(tmp_path, max_bytes=size * left // 6 + 2000)
        assert restored(folder, plain_layers, ids) == left * CELL


def test_what_is_before_others_is_always_as_recent(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    system, chance = tuple(range(2 * CELL)), random.Random(4)
    one_by_one(folder, *((*system, *range(i, i + CELL)) for i in range(4)))
    for _ in range(20):
        folder = folder_of(tmp_path)
        ids = (*system, *range((i := chance.randrange(6)), i + chance.choice([9, CELL])))
        (keep if chance.random() < 0.5 else restored)(folder, plain_layers, ids)
        uses = {file.name.split(".")[0]: file.stat().st_mtime_ns for file in files_in(tmp_path)}
        for file in files_in(tmp_path):
            parent = file.name.split(".")[1]
            assert uses.get(parent, 1 << 63) >= file.stat().st_mtime_ns


def test_a_chain_longer_than_the_limit_keeps_its_beginning(tmp_path: Path) -> None:
    ids = tuple(range(8 * CELL))
    keep(folder_of(tmp_path), plain_layers, ids[: 4 * CELL])
    size = folder_of(tmp_path).nbytes
    folder = folder_of(tmp_path, max_bytes=size)
    keep(folder, plain_layers, ids)
    assert restored(folder, plain_layers, ids) >= 3 * CELL
    assert folder.nbytes <= size
    tiny = folder_of(tmp_path / "tiny", max_bytes=100)
    assert keep(tiny, plain_layers, ids) == 0 and files_in(tmp_path / "tiny") == []


def test_a_piece_whose_beginning_is_gone_is_not_written(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    _, entry, _ = folder.missing(LONG)
    assert not folder.write(entry, *parts_of(plain_layers, LONG, entry))


# ---- others on the same folder -----------------------------------------------------------------


def test_what_another_server_writes_is_found(tmp_path: Path, listing_at_once: None) -> None:
    mine, theirs = folder_of(tmp_path), folder_of(tmp_path)
    assert mine.find(LONG) == []
    keep(theirs, plain_layers, LONG)
    assert restored(mine, plain_layers, LONG) == len(LONG)


def test_servers_keep_within_the_limit_together(tmp_path: Path, listing_at_once: None) -> None:
    keep(folder_of(tmp_path), plain_layers, range(100, 100 + CELL))
    limit = folder_of(tmp_path).nbytes * 4
    both = [folder_of(tmp_path, max_bytes=limit) for _ in range(2)]
    for first in range(12):
        assert keep(both[first % 2], plain_layers, range(first, first + CELL)) == 1
        assert sum(file.stat().st_size for file in files_in(tmp_path)) <= limit


def test_the_folder_is_not_listed_at_each_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise AssertionError(f"{path} is listed again")

    folder = folder_of(tmp_path)
    monkeypatch.setattr(os, "scandir", refuse)
    for _ in range(20):
        assert folder.find(LONG) == []


def test_a_piece_that_another_server_evicted_is_a_miss(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    first, second, _ = folder.find(LONG)
    (tmp_path / str(second.name)).unlink()
    assert folder.read(first) is not None and folder.read(second) is None
    assert restored(folder, plain_layers, LONG) == CELL
    assert keep(folder, plain_layers, LONG) == 1
    assert restored(folder, plain_layers, LONG) == len(LONG)


def test_two_folders_that_write_read_and_evict_at_once_never_give_anything_wrong(
    tmp_path: Path, listing_at_once: None
) -> None:
    keep(folder_of(tmp_path / "one"), plain_layers, range(6 * CELL))
    size = folder_of(tmp_path / "one").nbytes
    both = [folder_of(tmp_path / "both", max_bytes=size) for _ in range(2)]
    errors, found = list[BaseException](), list[int]()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(tries(150)):
                first = chance.randrange(4)
                ids = tuple(range(first, first + chance.randrange(10, 4 * CELL)))
                folder = chance.choice(both)
                if chance.random() < 0.5:
                    keep(folder, plain_layers, ids)
                found.append(restored(folder, plain_layers, ids))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and any(found)
    last = folder_of(tmp_path / "both", max_bytes=size)
    assert last.nbytes == sum(file.stat().st_size for file in files_in(last.path)) <= size


# ---- a disk that does not do as it is told -----------------------------------------------------


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_said_once_and_reading_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = filled(tmp_path)
    before = sorted(tmp_path.iterdir())
    other = LONG[5:]
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        assert keep(folder, plain_layers, other) == 0
    assert sorted(tmp_path.iterdir()) == before
    assert restored(folder, plain_layers, LONG) == len(LONG)
    assert keep(folder, plain_layers, other) == 0  # not tried again yet
    monkeypatch.setattr(folder_file, "_PAUSE", 0.0)
    for _ in range(3):
        folder._paused = 0.0
        with monkeypatch.context() as disk:
            disk.setattr(os, "fsync", full)
            assert keep(folder, plain_layers, other) == 0
    (record,) = caplog.records
    assert "No space left" in record.message
    assert keep(folder, plain_layers, other) == 3
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        assert keep(folder, plain_layers, LONG[7:]) == 0
    assert len(caplog.records) == 2  # it had worked in between


def test_a_folder_that_became_read_only_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    real = os.open
    for name in ("utime", "unlink"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(
        os, "open", lambda path, flags, *mode: (refuse if flags & os.O_CREAT else real)(path, flags)
    )
    folder = folder_of(tmp_path)
    for used in folder._files.values():
        used.used = 1  # long ago
    assert restored(folder, plain_layers, LONG) == len(LONG)
    assert keep(folder, plain_layers, LONG[5:]) == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_folder_that_was_removed_is_made_again(
    tmp_path: Path, listing_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_file, "_PAUSE", 0.0)
    path = tmp_path / "cache"
    folder = filled(path)
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    assert restored(folder, plain_layers, LONG) == 0
    assert keep(folder, plain_layers, LONG[9:]) == 3
    assert restored(folder, plain_layers, LONG[9:]) == len(LONG) - 9


@pytest.mark.parametrize("bad", ["", 5, b"folder", "a\0b", "file", "file/below", "x" * 5000])
def test_a_path_that_cannot_be_a_folder_is_an_option_error(bad: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / bad if isinstance(bad, str) and bad else bad
    with pytest.raises(OptionError, match="cache_dir: "):
        CacheDir.of(path, None)


def test_a_folder_that_cannot_be_listed_is_an_option_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        with pytest.raises(OptionError, match=f"cache_dir: .*{name} cannot be read"):
            folder_of(tmp_path / name)


def test_only_its_owner_can_read_a_folder(tmp_path: Path) -> None:
    folder = filled(tmp_path / "some" / "where")
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in files_in(folder.path)} == {0o600}


def test_arrays_that_do_not_lie_in_order_are_written_as_they_are(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, lambda: [KVCache()])
    (entry,) = folder.missing(range(5))
    for dtype in (mx.float32, mx.bfloat16):
        whole = mx.random.normal((1, 2, 9, 4)).astype(dtype)
        mx.eval(whole)
        part = whole[..., 2:7, :]
        mx.eval(part)
        assert folder.write(entry, Segment((((part, part),),), 5), None)
        piece = folder.read(entry)
        assert piece is not None
        assert all(mx.array_equal(array, part) for array in piece.segment.arrays())
        (tmp_path / str(entry.name)).unlink()
        folder = folder_of(tmp_path, lambda: [KVCache()])


def test_entries_say_how_many_tokens_and_bytes(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    sizes = {file.name: file.stat().st_size for file in files_in(tmp_path)}
    found: list[Entry] = folder.find(LONG, CELL + 10)
    assert [(entry.start, entry.stop) for entry in found] == [(0, CELL)]
    assert [entry.nbytes for entry in found] == [sizes[str(entry.name)] for entry in found]


# ---- a folder of several, and clocks -------------------------------------------------------------


def test_several_processes_hold_to_the_limit_at_every_moment(tmp_path: Path) -> None:
    """Each knows what the others have written since it listed the folder."""
    one = keep(folder_of(tmp_path / "probe"), plain_layers, LONG)
    assert one == 3
    limit = 4 * sum(path.stat().st_size for path in files_in(tmp_path / "probe"))
    shared = tmp_path / "shared"
    folders = [folder_of(shared, max_bytes=limit) for _ in range(3)]
    for turn in range(tries(40)):
        for number, folder in enumerate(folders):
            keep(folder, plain_layers, (turn, number, *LONG))
            held = sum(path.stat().st_size for path in files_in(shared))
            assert held <= limit, (turn, number)
    assert len(files_in(shared)) >= 6, "it was full"


def test_files_from_the_future_do_not_stop_the_folder(tmp_path: Path) -> None:
    """As after a clock was set back: they are as old as anything else from then on."""
    probe = filled(tmp_path / "probe").nbytes
    path = tmp_path / "kept"
    before = folder_of(path, max_bytes=2 * probe)
    for number in range(4):
        keep(before, plain_layers, (90 + number, *LONG))
    later = time.time() + 86_400
    for file in files_in(path):
        os.utime(file, (later, later))
    folder = folder_of(path, max_bytes=2 * probe)
    assert all(abs(file.stat().st_mtime - time.time()) < 60 for file in files_in(path))
    for number in range(3):
        ids = (number, *LONG)
        assert keep(folder, plain_layers, ids) == 3
        assert restored(folder, plain_layers, ids) == len(ids)
