"""What memory holds comes to be on disk before it goes, and comes back from there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import LanguageModel
from mlxgen.engine.prefix.cache import PrefixCache
from mlxgen.engine.prefix.entry import CELL, Entry
from mlxgen.engine.prefix.folder import Folder
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import random_model
from tests.fakes.filled_caches import (
    Ids,
    Make,
    check,
    holding,
    mixed_layers,
    plain_layers,
    state_layers,
)
from tests.fakes.prefix_integrity import check_integrity

from ...effort import tries

PLENTY = 1 << 40
MAKES = pytest.mark.parametrize("make", [plain_layers, state_layers, mixed_layers])


def cache_in(path: Path, make: Make, max_bytes: int = PLENTY, block: int = 1024) -> PrefixCache:
    folder = Folder(path, PLENTY, make=make)
    return PrefixCache(make, max_bytes, folder=folder, block=block)


def keep(cache: PrefixCache, make: Make, ids: Ids) -> None:
    """Insert what is known to be computed."""
    cache.prove(cache.insert(ids, holding(make, ids)))


def rest(cache: PrefixCache) -> None:
    """Wait until what is written now is written."""
    write_back = cache._write_back
    assert write_back is not None
    with write_back._changed:
        assert write_back._changed.wait_for(lambda: not write_back._writes, 20)


def sequence(count: int, first: int = 0) -> Ids:
    return tuple((first + i * i) % 1000 for i in range(count))


def gives(cache: PrefixCache, ids: Ids) -> int:
    """How many of these tokens it has once they are restored, and that they are right."""
    cache.restore(ids)
    check_integrity(cache)
    kv = cache.take((*ids, 0))
    if kv is None:
        return 0
    check(kv.caches, ids[: kv.length])
    return kv.length


@MAKES
@pytest.mark.parametrize("length", [CELL - 1, CELL, 3 * CELL, 3 * CELL + 17])
def test_what_is_flushed_is_there_in_the_next_process(
    make: Make, length: int, tmp_path: Path
) -> None:
    cache = cache_in(tmp_path, make)
    keep(cache, make, sequence(CELL + 50, 1))
    keep(cache, make, sequence(length))
    assert cache.folder is not None and cache.folder.nbytes == 0
    assert cache.flush(20)
    again = cache_in(tmp_path, make)
    assert gives(again, sequence(length)) == length
    assert gives(again, sequence(CELL + 50, 1)) == CELL + 50
    before = again.folder and again.folder.nbytes
    assert again.flush(20)  # nothing of it is new
    assert again.folder is not None and again.folder.nbytes == before


@MAKES
def test_all_is_waited_for_however_little_is_read_ahead(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = sequence(5 * CELL + 9)
    cache = cache_in(tmp_path, make)
    keep(cache, make, ids)
    assert cache.flush(20)
    monkeypatch.setattr("mlxgen.engine.prefix.fetch.AHEAD", 1)
    found: list[int] = []
    again = cache_in(tmp_path, make)
    waiting = threading.Thread(target=lambda: found.append(gives(again, ids)), daemon=True)
    waiting.start()
    waiting.join(20)
    assert found == [len(ids)]


@MAKES
def test_nothing_is_written_while_little_is_held(make: Make, tmp_path: Path) -> None:
    cache = cache_in(tmp_path, make, 200_000)
    for first in range(4):
        keep(cache, make, sequence(900, first))
    assert 0 < cache.nbytes < 100_000
    rest(cache)
    assert not list(tmp_path.iterdir())


def test_what_goes_first_is_written_before_it_has_to_go(tmp_path: Path) -> None:
    cache = cache_in(tmp_path, plain_layers, 16 * 4000, block=CELL)
    old, new = sequence(1500), sequence(1500, 1)
    keep(cache, plain_layers, old)
    keep(cache, plain_layers, new)
    rest(cache)
    folder = cache.folder
    assert folder is not None
    assert [entry.stop for entry in folder.find(old)][-1:] == [1500]
    assert folder.find(new) == []
    cache.shrink(0)
    assert gives(cache, old) == 1500


def test_more_is_written_ahead_if_others_need_the_memory(tmp_path: Path) -> None:
    cache = cache_in(tmp_path, plain_layers, 16 * 100_000, block=CELL)
    ids = sequence(2048)
    cache.prove(cache.insert(ids, holding(plain_layers, ids), room=16 * 3000))
    rest(cache)
    assert list(tmp_path.iterdir())


def test_what_may_not_have_been_computed_is_not_written(tmp_path: Path) -> None:
    cache = cache_in(tmp_path, plain_layers, 16 * 3000)
    ids = sequence(2048)
    nodes = cache.insert(ids, holding(plain_layers, ids))
    assert cache.flush(20) and not list(tmp_path.iterdir())
    cache.prove(nodes)
    rest(cache)
    assert list(tmp_path.iterdir())


@MAKES
def test_a_prefix_that_was_loaded_from_a_file_is_written_to_the_folder(
    make: Make, tmp_path: Path
) -> None:
    ids, file = sequence(CELL + 50), tmp_path / "prefix"
    cache = PrefixCache(make, PLENTY)
    cache.insert(ids, holding(make, ids))
    cache.save(file, ids)
    cache = cache_in(tmp_path / "folder", make)
    assert cache.load(file) == len(ids) and cache.flush(20)
    assert gives(cache_in(tmp_path / "folder", make), ids) == len(ids)


def test_a_prefix_that_was_saved_to_a_file_is_written_to_the_folder(tmp_path: Path) -> None:
    model = random_model("llama")

    def lm() -> LanguageModel:
        return LanguageModel(model, alphabet_tokenizer(), cache_dir=tmp_path / "folder")

    saving, ids = lm(), [i % 26 for i in range(CELL + 50)]
    saving.save_prefix(ids, tmp_path / "prefix")
    assert saving.prefix_cache.flush(20)
    kept = lm().prefix_cache
    kept.restore(ids)
    assert kept.match([*ids, 1]) == len(ids)


@MAKES
def test_what_is_evicted_before_it_was_written_is_written_if_it_is_little(
    make: Make, tmp_path: Path
) -> None:
    cache = cache_in(tmp_path, make, 16 * CELL * 64, block=CELL)
    ids = sequence(2 * CELL)
    keep(cache, make, ids)
    cache.shrink(0)
    assert cache.nbytes == 0
    cache.flush(20)
    assert gives(cache, ids) == len(ids)


class Held(Folder):
    """Writes when it is let."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.may = threading.Event()
        self.begun = threading.Event()

    def write(self, entry: Entry, *what: Any) -> bool:
        self.begun.set()
        assert self.may.wait(20)
        return super().write(entry, *what)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[PrefixCache]:
    folder = Held(tmp_path, PLENTY, make=plain_layers)
    yield PrefixCache(plain_layers, 16 * 4096, folder=folder, block=CELL)
    folder.may.set()


def test_nobody_waits_for_what_is_written(slow: PrefixCache) -> None:
    folder = slow.folder
    assert isinstance(folder, Held)
    for first in range(8):
        keep(slow, plain_layers, sequence(1024, first))
        assert slow.take((*sequence(1024, first), 0)) is not None
    assert folder.begun.wait(20) and slow.nbytes <= slow.max_bytes
    assert slow._write_back is not None
    assert 0 <= slow._write_back._bytes <= slow.max_bytes / 16
    assert not slow.flush(0.01)
    folder.may.set()
    assert slow.flush(20)
    assert gives(slow, sequence(1024, 7)) == 1024


STEPS = st.lists(
    st.tuples(st.sampled_from(["keep", "keep", "give", "shrink", "flush"]), st.integers(1, 700)),
    max_size=20,
)


@MAKES
@settings(max_examples=tries(24), deadline=None)
@given(steps=STEPS)
def test_random_use_gives_nothing_that_is_wrong(
    make: Make, steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache = cache_in(tmp_path_factory.mktemp("kv"), make, 12_000, block=100)
    for verb, count in steps:
        ids = (*sequence(count // 2), *sequence(count - count // 2, count % 3))
        if verb == "keep":
            keep(cache, make, ids)
        elif verb == "give":
            gives(cache, ids)
        elif verb == "shrink":
            cache.shrink(16 * count)
        else:
            assert cache.flush(20)
        check_integrity(cache)
    assert cache.close(20)
