"""What memory holds comes to be in a folder, and comes back from there: right, or not at all."""

from __future__ import annotations

import errno
import gc
import logging
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from mlxgen import LanguageModel
from mlxgen.engine.kv.commands import Keep
from mlxgen.engine.prefix import block_file
from mlxgen.engine.prefix import disk as disk_file
from mlxgen.engine.prefix.block import BLOCK, Block, as_ids, in_common
from mlxgen.engine.prefix.block_file import Layout
from mlxgen.engine.prefix.disk import Disk
from mlxgen.engine.prefix.store import BlockStore
from mlxgen.errors import OptionError
from mlxgen.loading.memory import CacheDir
from tests.effort import tries
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import VOCAB, cache_kinds, random_model
from tests.fakes.filled_caches import (
    Ids,
    Make,
    holding,
    mixed_layers,
    plain_layers,
    row,
    state_layers,
    taken,
)
from tests.fakes.prefix_integrity import check_integrity

from .kit import PLENTY, come, files_in, gives, keep, sequence, size_of, store_in, write

MAKES = pytest.mark.parametrize("make", [plain_layers, state_layers, mixed_layers])
LONG = tuple(range(2 * BLOCK + 20))


def filled(path: Path, make: Make = plain_layers) -> BlockStore:
    store = store_in(path, make)
    assert write(store, make, LONG) == 3
    return store


# ---- what comes back ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype"), [*((kind, mx.float32) for kind in cache_kinds()), ("plain", mx.bfloat16)]
)
def test_a_prompt_that_is_repeated_after_a_restart_runs_its_last_token_only(
    kind: str, dtype: mx.Dtype, tmp_path: Path
) -> None:
    """It ends inside of a block, and an answer came after it."""
    model, make = cache_kinds()[kind]()
    model.set_dtype(dtype)
    prompt = [(7 * i + i // 9) % 89 for i in range(2 * BLOCK + 230)]

    def said() -> tuple[int, list[Any]]:
        lm = LanguageModel(model, alphabet_tokenizer(), cache_dir=tmp_path)
        lm.runtime.make_cache = make  # type: ignore[method-assign]
        stream = lm.stream(prompt, max_tokens=32, temperature=0, ignore_eos=True)
        tokens = [chunk.token for chunk in stream]
        stream.keep()
        assert lm.prefix_cache.flush(20)
        return stream.usage.cached_tokens, tokens

    (nothing, first), (cached, again) = said(), said()
    assert first == again and (nothing, cached) == (0, len(prompt) - 1)


@MAKES
def test_what_is_found_is_the_longest_beginning_that_was_kept(make: Make, tmp_path: Path) -> None:
    """Against all sequences that were kept, for random ones that part anywhere."""
    chance, store, kept = random.Random(5), store_in(tmp_path, make), list[Ids]()
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
        assert gives(store, ids) == max([0, *same])
        if chance.random() < 0.3:
            store = store_in(tmp_path, make)  # whose files it has to open
            assert store.disk.disk_bytes == size_of(tmp_path)
        write(store, make, ids)
        kept.append(ids)
        assert gives(store, ids) == len(ids)
        assert write(store, make, ids) == 0


@MAKES
@settings(max_examples=tries(48), deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["keep", "keep", "give", "shrink", "flush"]), st.integers(1, 700)
        ),
        max_size=20,
    )
)
def test_random_use_gives_nothing_that_is_wrong(
    make: Make, steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = store_in(tmp_path_factory.mktemp("kv"), make, memory=12_000)
    for verb, count in steps:
        ids = (*sequence(count // 2), *sequence(count - count // 2, count % 3))
        if verb == "keep":
            keep(store, make, ids)
        elif verb == "give":
            gives(store, ids)
        elif verb == "shrink":
            store.shrink(16 * count)
        else:
            assert store.flush(20)
        check_integrity(store)
    assert store.close(20)


def test_a_window_that_is_not_full_is_trimmed_to_where_a_prompt_parts(tmp_path: Path) -> None:
    model, make = cache_kinds()["chunked"]()
    kv, ids = row(make), [i % VOCAB for i in range(12)]
    kv.forward(model, mx.array([ids]))
    store, again = (store_in(tmp_path, make, model=model) for _ in range(2))
    store.keep(ids, kv)
    assert store.flush(20)
    again = store_in(tmp_path, make, model=model)
    again.restore([*ids[:7], 90, 91])
    assert again.match([*ids[:7], 90, 91]) == store.match([*ids[:7], 90, 91]) == 7


def test_patches_of_images_are_tokens_like_others(tmp_path: Path) -> None:
    first = -(2**60)
    ids = (1, *(first - i for i in range(300)), 2)
    store = store_in(tmp_path)
    store.keep(ids, holding(plain_layers, tuple(range(302))))
    assert store.flush(20)
    again = store_in(tmp_path)
    again.restore((*ids, 0))
    assert again.match((*ids, 0)) == 302
    assert again.match((1, *(first - 1 - i for i in range(300)))) == 1


def test_a_block_that_two_threads_have_read_is_held_once(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for _ in range(2):
        assert store.do(Keep(None, LONG[:BLOCK]))
    check_integrity(store)
    assert store.nbytes == 16 * BLOCK


# ---- when it is written ------------------------------------------------------------------------


def test_nothing_is_written_while_the_device_works_or_may_have_failed(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    keep(store, plain_layers, sequence(900))
    time.sleep(0.05)
    assert not list(tmp_path.iterdir())
    store.settle()
    come(lambda: len(files_in(tmp_path)) == 4)
    store.work()
    keep(store, plain_layers, sequence(900, 1))
    time.sleep(0.05)
    assert store.close(20) and len(files_in(tmp_path)) == 4  # it was never settled


class Slow(Disk):
    """Writes when it is let."""

    may = threading.Event()
    begun = threading.Event()

    def write(self, block: Block) -> None:
        self.begun.set()
        assert self.may.wait(20)
        super().write(block)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[BlockStore]:
    Slow.may.clear()
    Slow.begun.clear()
    yield BlockStore(plain_layers, 16 * 4096, folder=Slow(tmp_path, PLENTY, Layout(plain_layers)))
    Slow.may.set()


def test_nobody_waits_for_what_is_written(slow: BlockStore) -> None:
    active = mx.get_active_memory()
    for first in range(8):
        keep(slow, plain_layers, sequence(1024, first))
        slow.settle()
        assert taken(slow, (*sequence(1024, first), 0)) is not None
    assert Slow.begun.wait(20) and slow.nbytes <= slow.max_bytes
    gc.collect()  # the rows that were filled and taken
    assert mx.get_active_memory() - active < 2 * slow.max_bytes
    assert not slow.flush(0.01)
    Slow.may.set()
    assert slow.flush(20)
    assert gives(slow, sequence(1024, 7)) == 1024


# ---- files that are not what was written -------------------------------------------------------


def test_another_model_or_format_finds_nothing_but_counts_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    two: Make = lambda: [KVCache(), KVCache()]  # noqa: E731
    packed: Make = lambda: [KVCache(), QuantizedKVCache(32, 8)]  # noqa: E731
    for make, other in ((mixed_layers, None), (packed, None), (two, random_model("llama"))):
        store = store_in(tmp_path, make, model=other)
        store.restore(LONG)
        assert store.match(LONG) == 0 and store.disk.disk_bytes == size_of(tmp_path)
    monkeypatch.setattr(block_file, "FORMAT", "mlxgen prefix 99")
    assert gives(store_in(tmp_path), LONG) == 0
    assert len(files_in(tmp_path)) == 3


def test_a_flipped_bit_or_a_missing_end_is_noticed_once_and_the_file_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance, store = random.Random(1), filled(tmp_path, mixed_layers)
    for _ in range(max(20, tries(150))):
        path = chance.choice(files_in(tmp_path))
        data = bytearray(path.read_bytes())
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        else:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        assert gives(store, LONG) == 0
        assert not path.exists()
        assert write(store, mixed_layers, LONG) == 1
        assert gives(store, LONG) == len(LONG)
        store.clear()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING


@pytest.mark.parametrize("others", [tuple(token + 1 for token in LONG), (*LONG[:-5], *range(5))])
def test_a_file_under_the_name_of_another_is_noticed_and_removed(
    others: Ids, tmp_path: Path
) -> None:
    write(store_in(tmp_path / "other"), plain_layers, others)
    for place, theirs in enumerate(_in_order(tmp_path / "other")):
        path = tmp_path / str(place)
        store = filled(path)
        mine = _in_order(path)[place]
        if mine.name == theirs.name:
            continue
        mine.write_bytes(theirs.read_bytes())
        for each in (store_in(path), store):  # which have to open it, or know its tokens
            assert gives(each, LONG) == place * BLOCK
            assert not mine.exists()


def _in_order(path: Path) -> list[Path]:
    return sorted(files_in(path), key=lambda file: int(file.name.split(".")[2]))


def test_files_of_others_are_never_touched_or_counted(tmp_path: Path) -> None:
    filled(tmp_path)
    mine, size = files_in(tmp_path), size_of(tmp_path)
    names = ["notes.txt", "model.safetensors", "0" * 40 + ".safetensors", ".hidden.part"]
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 100_000)
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / f"{mine[0].name}.bak").mkdir()
    parts = [tmp_path / f".{digit * 16}.part" for digit in "01"]
    for path in parts:
        path.write_bytes(b"")
    os.utime(parts[0], (1, 1))  # a dead process left it long ago
    assert store_in(tmp_path, disk=size).disk.disk_bytes == size
    assert store_in(tmp_path, disk=0).disk.disk_bytes == 0
    left = sorted([*names, f"{mine[0].name}.bak", parts[1].name])
    assert sorted(path.name for path in tmp_path.iterdir()) == left


# ---- others on the same folder -----------------------------------------------------------------


def test_what_another_server_writes_is_found_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_file, "_SHARE", 0)
    soon, theirs = store_in(tmp_path), store_in(tmp_path)
    monkeypatch.setattr(disk_file, "_RESCAN", 0.0)
    later = store_in(tmp_path)
    write(theirs, plain_layers, LONG)
    assert gives(later, LONG) == len(LONG)
    assert gives(soon, LONG) == 0, "a listing was just made"
    monkeypatch.setattr(os, "scandir", None)
    assert gives(later, LONG[9:]) == 0, "it is not listed while nothing changes"


def test_several_servers_hold_to_the_limit_at_every_moment(tmp_path: Path) -> None:
    """Each knows what the others have written since it listed the folder."""
    limit = 4 * size_of(filled(tmp_path / "probe").folder.path)  # type: ignore[union-attr]
    stores = [store_in(tmp_path / "kv", disk=limit) for _ in range(3)]
    for turn in range(tries(40)):
        for number, store in enumerate(stores):
            assert write(store, plain_layers, (turn, number, *LONG)) == 3
            assert size_of(tmp_path / "kv") <= limit, (turn, number)
    assert len(files_in(tmp_path / "kv")) >= 6, "it was full"


# ---- a disk that does not do as it is told -----------------------------------------------------


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_said_once_and_reading_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, other = filled(tmp_path), LONG[5:]
    before = sorted(tmp_path.iterdir())

    def write_fails() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            assert write(store, plain_layers, other) == 0

    write_fails()
    assert sorted(tmp_path.iterdir()) == before
    assert gives(store, LONG) == len(LONG)
    assert write(store, plain_layers, other) == 0  # not tried again yet
    monkeypatch.setattr(disk_file, "_PAUSE", 0.0)
    store = store_in(tmp_path)
    write_fails()
    write_fails()
    assert len(caplog.records) == 2  # one of each process
    assert "No space left" in caplog.records[0].message
    assert write(store, plain_layers, other) == 3
    other = LONG[7:]
    write_fails()
    assert len(caplog.records) == 3  # it had worked in between


def test_a_folder_that_became_read_only_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)
    for file in files_in(tmp_path):
        os.utime(file, (1, 1))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    real = os.open
    for name in ("utime", "unlink"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(
        os, "open", lambda path, flags, *mode: (refuse if flags & os.O_CREAT else real)(path, flags)
    )
    store = store_in(tmp_path)
    assert gives(store, LONG) == len(LONG)
    assert write(store, plain_layers, LONG[5:]) == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_folder_that_was_removed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_file, "_RESCAN", 0.0)
    monkeypatch.setattr(disk_file, "_SHARE", 0)
    path = tmp_path / "cache"
    store = filled(path)
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    assert gives(store, LONG) == 0
    assert write(store, plain_layers, LONG[9:]) == 3
    assert gives(store, LONG[9:]) == len(LONG) - 9


@pytest.mark.parametrize("bad", ["", 5, b"folder", "a\0b", "file", "file/below", "x" * 5000])
def test_a_path_that_cannot_be_a_folder_is_an_option_error(bad: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / bad if isinstance(bad, str) and bad else bad
    with pytest.raises(OptionError) as caught:
        CacheDir.of(path, None)
    assert caught.value.field == "cache_dir"
    if isinstance(bad, str) and bad.startswith("file"):
        with pytest.raises(OptionError) as caught:
            store_in(path)
        assert caught.value.field == "cache_dir"


def test_only_its_owner_can_read_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where"
    filled(path)
    assert path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in files_in(path)} == {0o600}
