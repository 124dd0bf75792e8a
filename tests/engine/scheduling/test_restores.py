"""Prompts begin with what is on disk, while others run, and say what they would say without."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import ArraysCache

from mlxgen import LanguageModel, Limits
from mlxgen.engine.options import Options
from mlxgen.engine.prefix.cache import PrefixCache
from mlxgen.engine.prefix.entry import CELL, Entry
from mlxgen.engine.prefix.folder import Folder
from mlxgen.engine.prefix.piece import Piece
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.engine.step.accepting import Event
from mlxgen.engine.step.handle import Handle
from mlxgen.engine.step.step import Loop
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import cache_kinds
from tests.fakes.costs import Still
from tests.fakes.speaking import Hall, Speaker, endless, letters

PLENTY = 1 << 40
LONG = [(7 * i) % 89 for i in range(2 * CELL + 40)]


class Disk(Folder):
    """Reads when it is let, and fails if it is told to."""

    def __init__(self, path: Path, speaker: Speaker) -> None:
        super().__init__(path, PLENTY, make=speaker.lm.make_cache)
        self.may = threading.Semaphore(0)
        self.reads: list[int] = []
        self.fails = False

    def read(self, entry: Entry) -> Piece | None:
        assert self.may.acquire(timeout=20)
        self.reads.append(entry.stop)
        if self.fails:
            raise OSError("the disk is gone")
        return super().read(entry)

    def let(self, count: int = 1000) -> None:
        self.may.release(count)


def hall_with(path: Path, *, recurrent: bool = False, **limits: Any) -> tuple[Hall, Disk]:
    """A new process, as it were: nothing is in memory."""
    caches: dict[str, Any] = {"make_cache": lambda: [ArraysCache(1)]} if recurrent else {}
    speaker = endless(**caches)
    disk = Disk(path, speaker)
    speaker.lm.prefix_cache = PrefixCache(speaker.lm.make_cache, 1 << 30, folder=disk)
    return Hall(speaker, **limits), disk


def written(path: Path, *prompts: list[int], recurrent: bool = False) -> None:
    """Have prompts on disk."""
    hall, _ = hall_with(path, recurrent=recurrent)
    for prompt in prompts:
        hall.submit(prompt, max_tokens=1)
        hall.finish()
    hall.scheduler.close()
    assert hall.speaker.lm.prefix_cache.flush(20)


def come(hall: Hall, condition: Callable[[], object]) -> None:
    """Step until something is so."""
    for _ in range(2000):
        if condition():
            return
        hall.step()
    raise AssertionError("it never came")


@pytest.mark.parametrize("kind", cache_kinds())
def test_with_the_disk_a_model_says_what_it_says_without(kind: str, tmp_path: Path) -> None:
    model, make = cache_kinds()[kind]()
    prompts = [LONG, [*LONG[: CELL + 20], 5, 6, 7]]

    def said(cache_dir: Path | None) -> tuple[list[list[int]], list[int]]:
        lm = LanguageModel(model, alphabet_tokenizer(), cache_dir=cache_dir)
        lm.make_cache = make  # type: ignore[method-assign]
        lm.pace = Still()
        scheduler = Scheduler(lm, Limits(max_batch=2, keep_prefixes=cache_dir is not None))
        tokens: dict[Handle, list[int]] = {}
        for seed, prompt in enumerate(prompts):
            options = Options.of({"max_tokens": 6, "temperature": 0.7, "seed": seed})
            tokens[scheduler.submit(lm.prepare(prompt, options))] = []
        while scheduler.busy:
            for event in scheduler.step():
                assert event.error is None
                tokens[event.handle] += [t for c in event.chunks if (t := c.token) is not None]
        scheduler.close()
        assert lm.prefix_cache.flush(20)
        return list(tokens.values()), [handle.cached for handle in tokens]

    expected, _ = said(None)
    first, _ = said(tmp_path)
    again, cached = said(tmp_path)
    assert first == again == expected
    if kind != "concatenating":
        assert cached[0] >= len(LONG) // 2


@pytest.mark.parametrize("recurrent", [False, True])
def test_nobody_waits_for_a_slow_disk_but_who_wants_it(recurrent: bool, tmp_path: Path) -> None:
    prompt = [65] * 600
    written(tmp_path, prompt, recurrent=recurrent)
    hall, disk = hall_with(tmp_path, recurrent=recurrent)
    running = hall.submit(max_tokens=200)
    hall.steps(3)
    restored = hall.submit([*prompt, 66], max_tokens=3)
    short = hall.submit([67] * 20, max_tokens=3)
    before = len(hall.texts[running])
    hall.steps(30)
    assert len(hall.texts[running]) == before + 30
    assert hall.texts[short] == letters(3, 19) and hall.texts[restored] == ""
    disk.let()
    come(hall, lambda: hall.texts[restored])
    hall.finish()
    assert hall.texts[restored] == letters(3, 600)
    assert (599 if recurrent else 512) <= restored.usage.cached_tokens <= 600
    assert hall.stats.restored_tokens == restored.cached and hall.stats.disk_bytes > 0


def test_the_first_pieces_serve_who_needs_no_more(tmp_path: Path) -> None:
    prompt = [(i * i) % 90 for i in range(4 * CELL)]
    written(tmp_path, prompt)
    hall, disk = hall_with(tmp_path)
    whole = hall.submit([*prompt, 1], max_tokens=2)
    hall.steps(2)
    beginning = hall.submit([*prompt[:CELL], *[3] * 30], max_tokens=2)
    hall.steps(2)
    disk.let(1)
    come(hall, lambda: beginning.closed)
    assert beginning.usage.cached_tokens == CELL and not whole.closed
    disk.let()
    come(hall, lambda: whole.closed)
    assert whole.usage.cached_tokens == 4 * CELL
    assert disk.reads == [CELL, 2 * CELL, 3 * CELL, 4 * CELL]  # each of them once


@pytest.mark.parametrize("recurrent", [False, True])
def test_two_that_want_the_same_share_one_reading(recurrent: bool, tmp_path: Path) -> None:
    prompt = [65] * 600
    written(tmp_path, prompt, recurrent=recurrent)
    hall, disk = hall_with(tmp_path, recurrent=recurrent)
    both = [hall.submit([*prompt, end], max_tokens=2) for end in (1, 2)]
    hall.steps(3)
    disk.let()
    hall.finish()
    assert [handle.usage.cached_tokens for handle in both] == [both[0].cached] * 2
    assert both[0].cached >= 512 and len(disk.reads) == len(set(disk.reads))


def test_a_disk_that_fails_gives_what_came_before(tmp_path: Path) -> None:
    prompt = [(i * i) % 90 for i in range(3 * CELL)]
    written(tmp_path, prompt)
    hall, disk = hall_with(tmp_path)
    handle = hall.submit([*prompt, 1], max_tokens=2)
    disk.let(1)
    come(hall, lambda: hall.speaker.lm.prefix_cache.nbytes)
    disk.fails = True
    disk.let()
    assert hall.finish() == [letters(2, 3 * CELL)]
    assert handle.usage.cached_tokens == CELL


def test_what_takes_longer_to_read_than_to_run_is_run(tmp_path: Path) -> None:
    prompt = [65] * 600
    written(tmp_path, prompt)
    hall, disk = hall_with(tmp_path)
    disk.let()
    cost = hall.speaker.lm.prefix_cache.read_cost
    cost.saw(disk.nbytes, 80.0)  # seconds, and ten tokens take one
    handle = hall.submit([*prompt, 1], max_tokens=2)
    hall.finish()
    assert handle.usage.cached_tokens == 0 and disk.reads == []
    assert hall.stats.restores_refused == 1
    for end in range(2, 9):  # it is tried again
        hall.speaker.lm.prefix_cache.clear()
        handle = hall.submit([*prompt, end], max_tokens=2)
        hall.finish()
        if handle.cached:
            break
    assert disk.reads


def test_who_gives_up_leaves_nothing_behind(tmp_path: Path) -> None:
    prompt = [(i * i) % 90 for i in range(3 * CELL)]
    written(tmp_path, prompt)
    hall, disk = hall_with(tmp_path)
    gone = hall.submit([*prompt, 1], max_tokens=2)
    disk.let(1)
    come(hall, lambda: hall.speaker.lm.prefix_cache.nbytes)
    hall.scheduler.cancel(gone)
    hall.scheduler.check_integrity()
    assert not hall.scheduler.busy
    del hall.texts[gone]
    other = hall.submit([*prompt[:CELL], *[2] * 9], max_tokens=2)  # what had come is there
    hall.finish()
    assert other.usage.cached_tokens == CELL
    disk.let()


def test_a_sequence_that_waits_for_the_disk_can_be_forked_and_rewound(tmp_path: Path) -> None:
    prompt = [65] * 600
    written(tmp_path, prompt)
    hall, disk = hall_with(tmp_path)
    handle = hall.submit([*prompt, 1], max_tokens=4, temperature=0)
    hall.step()
    threading.Timer(0.05, disk.let).start()
    hall.fork(handle, 2)
    hall.finish()
    assert list(hall.texts.values()) == [letters(4, 600)] * 3
    assert handle.usage.cached_tokens >= 512


def test_who_has_no_room_for_it_runs_it(tmp_path: Path) -> None:
    prompt = [65] * 2000
    written(tmp_path, prompt)
    hall, disk = hall_with(tmp_path, max_bytes=8 * 2600)
    disk.let()
    handle = hall.submit([*prompt, 1], max_tokens=3)
    hall.finish()
    assert hall.texts[handle] == letters(3, 2000)
    assert handle.usage.cached_tokens <= 600


def test_a_model_that_fails_meanwhile_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [65] * 600
    written(tmp_path, prompt)
    hall, disk = hall_with(tmp_path)
    hall.submit(max_tokens=40)
    hall.steps(3)
    hall.submit([*prompt, 1], max_tokens=3)
    hall.steps(3)
    step = Loop.step

    def failing(self: Loop, events: list[Event]) -> None:
        monkeypatch.setattr(Loop, "step", step)
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(Loop, "step", failing)
    hall.steps(2)
    disk.let()
    assert hall.finish() == [letters(40), letters(3, 600)]
    assert hall.stats.faults == 1


def test_what_is_loaded_or_saved_as_a_file_is_on_disk_as_well(tmp_path: Path) -> None:
    one = endless(cache_dir=tmp_path / "one").lm
    one.save_prefix([65] * 300, tmp_path / "prefix.safetensors")
    other = endless(cache_dir=tmp_path / "other").lm
    other.load_prefix(tmp_path / "prefix.safetensors")
    for lm in (one, other):
        assert lm.prefix_cache.flush(20) and lm.prefix_cache.disk.pieces_written == 2
