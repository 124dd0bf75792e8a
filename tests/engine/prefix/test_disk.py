"""What is written to a folder comes back from it to the bit, or not at all."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from mlxgen.engine.kv.alone import Alone
from mlxgen.engine.prefix import block_file
from mlxgen.engine.prefix import disk as disk_file
from mlxgen.engine.prefix.block import BLOCK, Block, as_ids, in_common
from mlxgen.engine.prefix.block_file import Layout
from mlxgen.engine.prefix.disk import Disk
from mlxgen.engine.prefix.store import BlockStore
from mlxgen.errors import LoadError, OptionError
from mlxgen.loading.cache_dir import CacheDir
from tests.effort import tries
from tests.fakes.architectures import SIDE_BY_SIDE, VOCAB, cache_kinds, random_model
from tests.fakes.filled_caches import Make, mixed_layers, plain_layers, state_layers

from .folders import PLENTY, bits, blocks_of, disk_of, files_in, keep, restored

LONG = tuple(range(2 * BLOCK + 20))


def filled(path: Path, make: Make = plain_layers) -> Disk:
    disk = disk_of(path, make)
    keep(disk, make, LONG)
    return disk


@pytest.fixture
def listing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others write is seen by the next one that looks."""

    def refresh(disk: Disk) -> None:
        disk._scan_quietly()

    monkeypatch.setattr(Disk, "refresh", refresh)


# ---- what comes back ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, mx.float32) for name in cache_kinds()), ("plain", mx.bfloat16)]
)
def test_blocks_of_every_cache_type_come_back_to_the_bit(
    name: str, dtype: mx.Dtype, tmp_path: Path
) -> None:
    model, make = cache_kinds()[name]()
    model.set_dtype(dtype)
    length = BLOCK + 20
    ids = [int(t) for t in np.random.default_rng(3).integers(0, VOCAB, length)]
    kv = Alone(make)
    for part in (ids[:200], ids[200:]):
        kv.forward(model, mx.array([part]))
        mx.eval(kv.arrays())
    store = BlockStore(make, PLENTY, folder=Disk(tmp_path, PLENTY, Layout(make, model)))
    store.keep(ids, kv)
    assert store.flush(20) and len(files_in(tmp_path)) == 2
    kept = {block.key: block for block in store._blocks}

    other = Disk(tmp_path, PLENTY, Layout(make, model))
    assert other.nbytes == sum(file.stat().st_size for file in files_in(tmp_path))
    for key, block in kept.items():
        read = other.read(key)
        assert (read.start, read.stop) == (block.start, block.stop)
        assert read.has_state is block.has_state
        for a, b in zip(read.arrays(), block.arrays(), strict=True):
            assert (a.dtype, a.shape, bits(a)) == (b.dtype, b.shape, bits(b))
    assert any(block.has_state for block in kept.values()) is (name not in SIDE_BY_SIDE)


@pytest.mark.parametrize("make", [plain_layers, mixed_layers, state_layers])
def test_what_is_found_is_the_longest_beginning_that_was_kept(make: Make, tmp_path: Path) -> None:
    """Against all sequences that were kept, for random ones that part anywhere."""
    chance = random.Random(5)
    disk, kept = disk_of(tmp_path, make), list[tuple[int, ...]]()
    for _ in range(tries(60)):
        base = chance.choice(kept) if kept and chance.random() < 0.8 else ()
        start = chance.randrange(len(base) + 1)
        more = (chance.randrange(50) for _ in range(chance.choice([3, 100, BLOCK, 400])))
        ids = (*base[:start], *more)
        if chance.random() < 0.3:
            ids = ids[: max(BLOCK, len(ids) // BLOCK * BLOCK)]
        same = [in_common(as_ids(one), as_ids(ids)) for one in kept]
        if make is not plain_layers:
            same = [n if n == len(one) else 0 for n, one in zip(same, kept, strict=True)]
        assert restored(disk, make, ids) == max([0, *same])
        if chance.random() < 0.3:
            disk = disk_of(tmp_path, make)  # whose files it has to open
        keep(disk, make, ids)
        kept.append(ids)
        assert restored(disk, make, ids) == len(ids)
        assert keep(disk, make, ids) == 0


def test_sequences_share_the_blocks_before_the_place_where_they_part(tmp_path: Path) -> None:
    disk = filled(tmp_path)
    assert keep(disk, plain_layers, (*LONG[: BLOCK + 9], 7)) == 1
    assert keep(disk, plain_layers, (*LONG, *range(BLOCK))) == 2
    assert len(files_in(tmp_path)) == 6


def test_a_model_with_states_goes_on_from_states_only(tmp_path: Path) -> None:
    disk = disk_of(tmp_path, mixed_layers)
    assert keep(disk, mixed_layers, LONG, ends=False) == 3
    assert restored(disk, mixed_layers, LONG) == 0
    assert keep(disk, mixed_layers, LONG[: BLOCK + 5]) == 1
    assert restored(disk, mixed_layers, LONG) == BLOCK + 5


def test_a_state_after_a_whole_block_comes_into_its_file(tmp_path: Path) -> None:
    disk = disk_of(tmp_path, mixed_layers)
    other = disk_of(tmp_path, mixed_layers)
    keep(disk, mixed_layers, LONG[: 2 * BLOCK], ends=False)
    assert keep(disk, mixed_layers, LONG[:BLOCK]) == 1
    assert keep(disk, mixed_layers, LONG[: 2 * BLOCK], ends=False) == 0
    assert len(files_in(tmp_path)) == 2
    assert keep(other, mixed_layers, LONG[: 2 * BLOCK]) == 1  # it sees those of the other first
    assert restored(disk_of(tmp_path, mixed_layers), mixed_layers, LONG) == 2 * BLOCK
    assert len(files_in(tmp_path)) == 2
    assert disk_of(tmp_path, mixed_layers).nbytes == sum(
        file.stat().st_size for file in files_in(tmp_path)
    )


def test_a_window_that_is_not_full_is_trimmed_to_where_a_prompt_parts(tmp_path: Path) -> None:
    model, make = cache_kinds()["chunked"]()
    kv, ids = Alone(make), [i % VOCAB for i in range(12)]
    kv.forward(model, mx.array([ids]))
    assert kv.can_undo(0) and kv.needs_snapshots
    store = BlockStore(make, PLENTY, folder=Disk(tmp_path, PLENTY, Layout(make, model)))
    store.keep(ids, kv)
    assert store.flush(20)
    again = BlockStore(make, PLENTY, folder=Disk(tmp_path, PLENTY, Layout(make, model)))
    again.restore([*ids[:7], 90, 91])
    assert again.match([*ids[:7], 90, 91]) == store.match([*ids[:7], 90, 91])


def test_patches_of_images_are_tokens_like_others(tmp_path: Path) -> None:
    disk, first = disk_of(tmp_path), -(2**60)
    ids, others = ((1, *(at - i for i in range(300)), 2) for at in (first, first - 1))
    (block, _), (other, _) = (
        [
            Block(each.parent, 0, as_ids(named[:BLOCK]), each.layers)
            for each in blocks_of(disk, plain_layers, range(302))
        ]
        for named in (ids, others)
    )
    assert disk.write(block)
    assert disk_of(tmp_path).read(block.key).tokens.tolist() == list(ids[:BLOCK])
    assert disk.get(other.key) is None


# ---- files that are not what was written -------------------------------------------------------


def test_another_model_finds_nothing_but_counts_the_files(tmp_path: Path) -> None:
    disk, model = filled(tmp_path), random_model("llama")
    two: Make = lambda: [KVCache(), KVCache()]  # noqa: E731
    packed: Make = lambda: [KVCache(), QuantizedKVCache(32, 8)]  # noqa: E731
    for make, other in ((mixed_layers, None), (packed, None), (two, model)):
        theirs = Disk(tmp_path, PLENTY, Layout(make, other))
        store = BlockStore(make, PLENTY, folder=theirs)
        store.restore(LONG)
        assert store.match(LONG) == 0
        assert theirs.nbytes == disk.nbytes and len(files_in(tmp_path)) == 3


def test_another_format_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    monkeypatch.setattr(block_file, "FORMAT", "mlxgen prefix 99")
    assert restored(disk_of(tmp_path), plain_layers, LONG) == 0


def test_a_flipped_bit_or_a_missing_end_is_noticed_once_and_the_file_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(1)
    disk = filled(tmp_path, mixed_layers)
    for _ in range(tries(150)):
        path = chance.choice(files_in(tmp_path))
        data = bytearray(path.read_bytes())
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        else:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        assert restored(disk, mixed_layers, LONG) == 0
        assert not path.exists()
        assert keep(disk, mixed_layers, LONG) == 1
        assert restored(disk, mixed_layers, LONG) == len(LONG)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "is removed" in record.message
    assert "save the prefix" not in record.message


def test_a_broken_file_that_is_opened_for_its_tokens_only_is_removed(tmp_path: Path) -> None:
    filled(tmp_path)
    last = next(file for file in files_in(tmp_path) if f".{2 * BLOCK}." in file.name)
    last.write_bytes(last.read_bytes()[:30])
    assert restored(disk_of(tmp_path), plain_layers, LONG[:-5]) == 2 * BLOCK
    assert not last.exists()


def test_a_file_under_the_name_of_another_is_noticed(tmp_path: Path) -> None:
    disk = filled(tmp_path)
    keep(disk, plain_layers, LONG[10:])
    for ids, others in ((LONG, LONG[10:]), (LONG[10:], LONG)):
        mine, other = (list(blocks_of(disk, plain_layers, each)) for each in (ids, others))
        for block, wrong in zip(mine, other, strict=True):
            names = [disk.get(each.key) for each in (block, wrong)]
            good, bad = (tmp_path / name.name for name in names if name is not None)
            good.write_bytes(bad.read_bytes())
            with pytest.raises(LoadError):
                disk.read(block.key)
            assert not good.exists()
        keep(disk, plain_layers, ids)


def test_a_saved_prefix_under_the_name_of_a_block_is_noticed(tmp_path: Path) -> None:
    """It is whole and of the same model, but has no place in a chain."""
    disk = filled(tmp_path)
    *_, last = blocks_of(disk, plain_layers, LONG)
    file = disk.get(last.key)
    assert file is not None
    prefix = Block("", 0, last.tokens, last.layers)
    block_file.write(tmp_path / file.name, prefix, disk.layout)
    with pytest.raises(LoadError):
        disk.read(last.key)


@pytest.mark.parametrize("make", [plain_layers, mixed_layers])
def test_a_block_is_not_taken_for_a_saved_prefix(make: Make, tmp_path: Path) -> None:
    filled(tmp_path, make)
    for path in files_in(tmp_path):
        with pytest.raises(LoadError, match="part of a prefix"):
            BlockStore(make, PLENTY).load(path)


def test_files_of_others_are_never_touched_or_counted(tmp_path: Path) -> None:
    mine = files_in(filled(tmp_path).path)
    names = ["notes.txt", "model.safetensors", "0" * 40 + ".safetensors", ".hidden.part"]
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 100_000)
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / f"{mine[0].name}.bak").mkdir()
    size = sum(path.stat().st_size for path in mine)
    assert disk_of(tmp_path, max_bytes=size).nbytes == size
    disk = disk_of(tmp_path, max_bytes=0)
    assert disk.nbytes == 0 and files_in(tmp_path) == sorted(tmp_path / name for name in names[1:3])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*names, f"{mine[0].name}.bak"]
    )


def test_parts_that_a_dead_process_left_are_removed_when_they_are_old(tmp_path: Path) -> None:
    old, young = tmp_path / f".{'0' * 16}.part", tmp_path / f".{'1' * 16}.part"
    for path in (old, young):
        path.write_bytes(b"")
    os.utime(old, (1, 1))
    disk_of(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [young.name]


# ---- the limit ---------------------------------------------------------------------------------


def one_by_one(disk: Disk, *chains: tuple[int, ...]) -> None:
    """Keep chains, each long after the one before."""
    for i, ids in enumerate(chains):
        keep(disk, plain_layers, ids)
        for block in blocks_of(disk, plain_layers, ids):
            if (file := disk.get(block.key)) is not None:
                os.utime(disk.path / file.name, (i + 1, i + 1))


def test_the_least_recently_used_goes_first_also_after_a_restart(tmp_path: Path) -> None:
    chains = [tuple(range(i, i + BLOCK)) for i in range(5)]
    one_by_one(disk_of(tmp_path), *chains[:4])
    limit = disk_of(tmp_path).nbytes * 7 // 8
    assert restored(disk_of(tmp_path), plain_layers, chains[0]) == BLOCK  # used again

    def there() -> list[bool]:
        disk = disk_of(tmp_path, max_bytes=limit)
        assert disk.nbytes == sum(file.stat().st_size for file in files_in(tmp_path)) <= limit
        keys = [block.key for ids in chains for block in blocks_of(disk, plain_layers, ids)]
        return [disk.get(key) is not None for key in keys]

    assert there() == [True, False, True, True, False]
    assert keep(disk_of(tmp_path, max_bytes=limit), plain_layers, chains[4]) == 1
    assert there() == [True, False, False, True, True]


def test_a_chain_goes_from_its_end(tmp_path: Path) -> None:
    ids = tuple(range(6 * BLOCK))
    keep(disk_of(tmp_path), plain_layers, ids)
    size = disk_of(tmp_path).nbytes
    for left in range(5, 0, -1):
        disk = disk_of(tmp_path, max_bytes=size * left // 6 + 2000)
        assert restored(disk, plain_layers, ids) == left * BLOCK


def test_what_is_before_others_is_always_as_recent(tmp_path: Path) -> None:
    disk = disk_of(tmp_path)
    system, chance = tuple(range(2 * BLOCK)), random.Random(4)
    one_by_one(disk, *((*system, *range(i, i + BLOCK)) for i in range(4)))
    for _ in range(20):
        disk = disk_of(tmp_path)
        ids = (*system, *range((i := chance.randrange(6)), i + chance.choice([9, BLOCK])))
        (keep if chance.random() < 0.5 else restored)(disk, plain_layers, ids)
        uses = {file.name.split(".")[0]: file.stat().st_mtime_ns for file in files_in(tmp_path)}
        for file in files_in(tmp_path):
            parent = file.name.split(".")[1]
            assert uses.get(parent, 1 << 63) >= file.stat().st_mtime_ns


def test_a_chain_longer_than_the_limit_keeps_its_beginning(tmp_path: Path) -> None:
    ids = tuple(range(8 * BLOCK))
    keep(disk_of(tmp_path), plain_layers, ids[: 4 * BLOCK])
    size = disk_of(tmp_path).nbytes
    disk = disk_of(tmp_path, max_bytes=size)
    keep(disk, plain_layers, ids)
    assert restored(disk, plain_layers, ids) >= 3 * BLOCK
    assert disk.nbytes <= size
    tiny = disk_of(tmp_path / "tiny", max_bytes=100)
    assert keep(tiny, plain_layers, ids) == 0 and files_in(tmp_path / "tiny") == []


def test_a_block_whose_beginning_is_gone_is_not_written(tmp_path: Path) -> None:
    disk = disk_of(tmp_path)
    _, second, _ = blocks_of(disk, plain_layers, LONG)
    assert not disk.write(second)


# ---- others on the same folder -----------------------------------------------------------------


def test_what_another_server_writes_is_found(tmp_path: Path, listing_at_once: None) -> None:
    mine, theirs = disk_of(tmp_path), disk_of(tmp_path)
    assert restored(mine, plain_layers, LONG) == 0
    keep(theirs, plain_layers, LONG)
    assert restored(mine, plain_layers, LONG) == len(LONG)


def test_what_another_server_writes_is_found_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_file, "_RESCAN", 0.0)
    monkeypatch.setattr(disk_file, "_SHARE", 0)
    mine, theirs = disk_of(tmp_path), disk_of(tmp_path)
    keep(theirs, plain_layers, LONG)
    end = time.monotonic() + 20
    while restored(mine, plain_layers, LONG) < len(LONG):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_servers_keep_within_the_limit_together(tmp_path: Path) -> None:
    keep(disk_of(tmp_path), plain_layers, range(100, 100 + BLOCK))
    limit = disk_of(tmp_path).nbytes * 4
    both = [disk_of(tmp_path, max_bytes=limit) for _ in range(2)]
    for first in range(12):
        assert keep(both[first % 2], plain_layers, range(first, first + BLOCK)) == 1
        assert sum(file.stat().st_size for file in files_in(tmp_path)) <= limit


def test_the_folder_is_not_listed_at_each_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise AssertionError(f"{path} is listed again")

    disk = disk_of(tmp_path)
    monkeypatch.setattr(os, "scandir", refuse)
    for _ in range(20):
        assert restored(disk, plain_layers, LONG) == 0


def test_a_block_that_another_server_evicted_is_a_miss(tmp_path: Path) -> None:
    disk = filled(tmp_path)
    first, second, _ = blocks_of(disk, plain_layers, LONG)
    file = disk.get(second.key)
    assert file is not None
    (tmp_path / file.name).unlink()
    assert disk.read(first.key).tokens.tolist() == list(LONG[:BLOCK])
    with pytest.raises(LoadError):
        disk.read(second.key)
    assert restored(disk, plain_layers, LONG) == BLOCK
    assert keep(disk, plain_layers, LONG) == 1
    assert restored(disk, plain_layers, LONG) == len(LONG)


def test_two_folders_that_write_read_and_evict_at_once_never_give_anything_wrong(
    tmp_path: Path, listing_at_once: None
) -> None:
    keep(disk_of(tmp_path / "one"), plain_layers, range(6 * BLOCK))
    size = disk_of(tmp_path / "one").nbytes
    both = [disk_of(tmp_path / "both", max_bytes=size) for _ in range(2)]
    errors, found = list[BaseException](), list[int]()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(tries(150)):
                first = chance.randrange(4)
                ids = tuple(range(first, first + chance.randrange(10, 4 * BLOCK)))
                disk = chance.choice(both)
                if chance.random() < 0.5:
                    keep(disk, plain_layers, ids)
                found.append(restored(disk, plain_layers, ids))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and any(found)
    last = disk_of(tmp_path / "both", max_bytes=size)
    assert last.nbytes == sum(file.stat().st_size for file in files_in(last.path)) <= size


# ---- a disk that does not do as it is told -----------------------------------------------------


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_said_once_and_reading_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = filled(tmp_path)
    before = sorted(tmp_path.iterdir())
    other = LONG[5:]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert keep(disk, plain_layers, other) == 0
    assert sorted(tmp_path.iterdir()) == before
    assert restored(disk, plain_layers, LONG) == len(LONG)
    assert keep(disk, plain_layers, other) == 0  # not tried again yet
    monkeypatch.setattr(disk_file, "_PAUSE", 0.0)
    for _ in range(3):
        disk._paused = 0.0
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            assert keep(disk, plain_layers, other) == 0
    (record,) = caplog.records
    assert "No space left" in record.message
    assert keep(disk, plain_layers, other) == 3
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert keep(disk, plain_layers, LONG[7:]) == 0
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
    disk = disk_of(tmp_path)
    for file in disk._files.values():
        file.used = 1  # long ago
    assert restored(disk, plain_layers, LONG) == len(LONG)
    assert keep(disk, plain_layers, LONG[5:]) == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_folder_that_was_removed_is_made_again(
    tmp_path: Path, listing_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_file, "_PAUSE", 0.0)
    path = tmp_path / "cache"
    disk = filled(path)
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    assert restored(disk, plain_layers, LONG) == 0
    assert keep(disk, plain_layers, LONG[9:]) == 3
    assert restored(disk, plain_layers, LONG[9:]) == len(LONG) - 9


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
            disk_of(tmp_path / name)


def test_only_its_owner_can_read_a_folder(tmp_path: Path) -> None:
    disk = filled(tmp_path / "some" / "where")
    assert disk.path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in files_in(disk.path)} == {0o600}


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_arrays_that_do_not_lie_in_order_are_written_as_they_are(
    dtype: mx.Dtype, tmp_path: Path
) -> None:
    disk = disk_of(tmp_path, lambda: [KVCache()])
    whole = mx.random.normal((1, 2, 9, 4)).astype(dtype)
    mx.eval(whole)
    part = whole[..., 2:7, :]
    mx.eval(part)
    block = Block(disk.layout.root, 0, as_ids(range(5)), ((part, part),))
    assert disk.write(block)
    assert all(mx.array_equal(array, part) for array in disk.read(block.key).arrays())


# ---- a folder of several, and clocks -------------------------------------------------------------


def test_several_processes_hold_to_the_limit_at_every_moment(tmp_path: Path) -> None:
    """Each knows what the others have written since it listed the folder."""
    one = keep(disk_of(tmp_path / "probe"), plain_layers, LONG)
    assert one == 3
    limit = 4 * sum(path.stat().st_size for path in files_in(tmp_path / "probe"))
    shared = tmp_path / "shared"
    disks = [disk_of(shared, max_bytes=limit) for _ in range(3)]
    for turn in range(tries(40)):
        for number, disk in enumerate(disks):
            keep(disk, plain_layers, (turn, number, *LONG))
            held = sum(path.stat().st_size for path in files_in(shared))
            assert held <= limit, (turn, number)
    assert len(files_in(shared)) >= 6, "it was full"


def test_files_from_the_future_do_not_stop_the_folder(tmp_path: Path) -> None:
    """As after a clock was set back: they are as old as anything else from then on."""
    probe = filled(tmp_path / "probe").nbytes
    path = tmp_path / "kept"
    before = disk_of(path, max_bytes=2 * probe)
    for number in range(4):
        keep(before, plain_layers, (90 + number, *LONG))
    later = time.time() + 86_400
    for file in files_in(path):
        os.utime(file, (later, later))
    disk = disk_of(path, max_bytes=2 * probe)
    assert all(abs(file.stat().st_mtime - time.time()) < 60 for file in files_in(path))
    for number in range(3):
        ids = (number, *LONG)
        assert keep(disk, plain_layers, ids) == 3
        assert restored(disk, plain_layers, ids) == len(ids)
