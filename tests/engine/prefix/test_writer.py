"""What memory holds comes to be on disk, and comes back from there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import LanguageModel
from mlxgen.engine.prefix.block import BLOCK, Block
from mlxgen.engine.prefix.block_file import Layout
from mlxgen.engine.prefix.disk import Disk
from mlxgen.engine.prefix.store import BlockStore
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import cache_kinds, random_model
from tests.fakes.filled_caches import (
    Ids,
    Make,
    holding,
    mixed_layers,
    plain_layers,
    state_layers,
)
from tests.fakes.prefix_integrity import check_integrity

from ...effort import tries
from .folders import PLENTY, disk_of, files_in, gives

MAKES = pytest.mark.parametrize("make", [plain_layers, state_layers, mixed_layers])


def store_in(path: Path, make: Make, max_bytes: int = PLENTY) -> BlockStore:
    return BlockStore(make, max_bytes, folder=disk_of(path, make))


def keep(store: BlockStore, make: Make, ids: Ids, room: int | None = None) -> None:
    store.keep(ids, holding(make, ids), room=room)


def come(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def sequence(count: int, first: int = 0) -> Ids:
    return tuple((first + i * i) % 1000 for i in range(count))


@MAKES
@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, 3 * BLOCK, 3 * BLOCK + 17])
def test_what_is_flushed_is_there_in_the_next_process(
    make: Make, length: int, tmp_path: Path
) -> None:
    store = store_in(tmp_path, make)
    keep(store, make, sequence(BLOCK + 50, 1))
    keep(store, make, sequence(length))
    assert store.disk.disk_bytes == 0
    assert store.flush(20)
    again = store_in(tmp_path, make)
    assert gives(again, sequence(length)) == length
    assert gives(again, sequence(BLOCK + 50, 1)) == BLOCK + 50
    before = again.disk.disk_bytes
    assert again.flush(20)  # nothing of it is new
    assert again.disk.disk_bytes == before and again.disk.pieces_written == 0


@pytest.mark.parametrize("kind", cache_kinds())
def test_a_prompt_that_is_repeated_after_a_restart_runs_its_last_token_only(
    kind: str, tmp_path: Path
) -> None:
    """It ends inside of a block, and an answer came after it."""
    model, make = cache_kinds()[kind]()
    prompt = [(7 * i + i // 9) % 89 for i in range(2 * BLOCK + 230)]

    def said() -> tuple[int, list[int]]:
        lm = LanguageModel(model, alphabet_tokenizer(), cache_dir=tmp_path)
        lm.runtime.make_cache = make  # type: ignore[method-assign]
        tokens = []
        stream = lm.stream(prompt, max_tokens=32, temperature=0, ignore_eos=True)
        for chunk in stream:
            tokens.append(chunk.token)
        stream.keep()
        assert lm.prefix_cache.flush(20)
        return stream.usage.cached_tokens, [each for each in tokens if each is not None]

    (nothing, first), (cached, again) = said(), said()
    assert first == again and (nothing, cached) == (0, len(prompt) - 1)


def test_nothing_is_written_while_the_device_works(tmp_path: Path) -> None:
    store = store_in(tmp_path, plain_layers)
    keep(store, plain_layers, sequence(900))
    time.sleep(0.05)
    assert not list(tmp_path.iterdir())
    store.settle()
    come(lambda: len(files_in(tmp_path)) == 4)
    store.work()
    keep(store, plain_layers, sequence(900, 1))
    time.sleep(0.05)
    assert len(files_in(tmp_path)) == 4


def test_a_tail_on_disk_goes_when_a_longer_one_is_there(tmp_path: Path) -> None:
    store, ids = store_in(tmp_path, plain_layers), sequence(BLOCK + 90)
    for count in (BLOCK + 10, BLOCK + 50, BLOCK + 90):
        keep(store, plain_layers, ids[:count])
        assert store.flush(20) and len(files_in(tmp_path)) == 2
    assert gives(store_in(tmp_path, plain_layers), ids) == len(ids)


def test_what_may_not_have_been_computed_is_not_written(tmp_path: Path) -> None:
    store = store_in(tmp_path, plain_layers)
    keep(store, plain_layers, sequence(2048))
    assert store.close(20) is True and not list(tmp_path.iterdir())


@MAKES
def test_a_prefix_that_was_loaded_from_a_file_is_written_to_the_folder(
    make: Make, tmp_path: Path
) -> None:
    ids, file = sequence(BLOCK + 50), tmp_path / "prefix"
    cache = BlockStore(make, PLENTY)
    cache.keep(ids, holding(make, ids))
    cache.save(file, ids)
    cache = store_in(tmp_path / "folder", make)
    assert cache.load(file) == len(ids) and cache.flush(20)
    assert gives(store_in(tmp_path / "folder", make), ids) == len(ids)


def test_a_prefix_that_was_saved_to_a_file_is_written_to_the_folder(tmp_path: Path) -> None:
    model = random_model("llama")

    def lm() -> LanguageModel:
        return LanguageModel(model, alphabet_tokenizer(), cache_dir=tmp_path / "folder")

    saving, ids = lm(), [i % 26 for i in range(BLOCK + 50)]
    saving.save_prefix(ids, tmp_path / "prefix")
    assert saving.prefix_cache.flush(20)
    kept = lm().prefix_cache
    kept.restore([*ids, 1])
    assert kept.match([*ids, 1]) == len(ids)


@MAKES
def test_what_is_evicted_before_it_was_written_is_written_if_it_is_little(
    make: Make, tmp_path: Path
) -> None:
    cache = store_in(tmp_path, make, 16 * BLOCK * 64)
    ids = sequence(2 * BLOCK)
    keep(cache, make, ids)
    cache.shrink(0)
    assert cache.nbytes == 0
    cache.flush(20)
    assert gives(cache, ids) == len(ids)


class Slow(Disk):
    """Writes when it is let."""

    may = threading.Event()
    begun = threading.Event()

    def write(self, block: Block) -> bool:
        self.begun.set()
        assert self.may.wait(20)
        return super().write(block)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[BlockStore]:
    Slow.may.clear()
    Slow.begun.clear()
    yield BlockStore(plain_layers, 16 * 4096, folder=Slow(tmp_path, PLENTY, Layout(plain_layers)))
    Slow.may.set()


def test_nobody_waits_for_what_is_written(slow: BlockStore) -> None:
    for first in range(8):
        keep(slow, plain_layers, sequence(1024, first))
        assert slow.take((*sequence(1024, first), 0)) is not None
    assert Slow.begun.wait(20) and slow.nbytes <= slow.max_bytes
    assert slow._writer is not None
    waits = sum(block.nbytes for block in slow._writer._rescued)
    assert 0 <= waits <= slow.max_bytes / 16
    assert not slow.flush(0.01)
    Slow.may.set()
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
    cache = store_in(tmp_path_factory.mktemp("kv"), make, 12_000)
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
