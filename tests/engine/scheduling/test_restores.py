"""Prompts begin with what is on disk, while others run, and say what they would say without."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import ArraysCache

from mlxgen.engine.prefix.block import BLOCK, Block
from mlxgen.engine.prefix.block_file import Layout
from mlxgen.engine.prefix.disk import Disk
from mlxgen.engine.prefix.store import BlockStore
from mlxgen.engine.scheduling import prefill as prefill_file
from tests.fakes.speaking import Hall, Speaker, endless, letters

PLENTY = 1 << 40
LONG = [(7 * i) % 89 for i in range(2 * BLOCK + 40)]


class Counted(Disk):
    """Fails if it is told to, and takes its time."""

    pause = 0.0
    fails_after: int | None = None

    def __init__(self, path: Path, speaker: Speaker) -> None:
        super().__init__(path, PLENTY, Layout(speaker.lm.runtime.make_cache))
        self.reads: list[int] = []

    def read(self, block: Block) -> Block:
        if self.fails_after is not None and len(self.reads) >= self.fails_after:
            raise OSError("the disk is gone")
        time.sleep(self.pause)
        self.reads.append(block.stop)
        return super().read(block)


@pytest.fixture
def block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block is read between two steps."""
    monkeypatch.setattr(prefill_file, "READING", 0.0)


def hall_with(path: Path, *, recurrent: bool = False, **limits: Any) -> tuple[Hall, Counted]:
    """A new process, as it were: nothing is in memory."""
    caches: dict[str, Any] = {"make_cache": lambda: [ArraysCache(1)]} if recurrent else {}
    speaker = endless(**caches)
    disk = Counted(path, speaker)
    speaker.lm.runtime.prefix_cache = BlockStore(
        speaker.lm.runtime.make_cache, 1 << 30, folder=disk
    )
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


@pytest.mark.parametrize("recurrent", [False, True])
def test_others_have_a_step_between_two_blocks(
    recurrent: bool, tmp_path: Path, block_by_block: None
) -> None:
    prompt = [65] * 600
    written(tmp_path, prompt, recurrent=recurrent)
    hall, disk = hall_with(tmp_path, recurrent=recurrent)
    running = hall.submit(max_tokens=200)
    hall.steps(3)
    before = len(hall.texts[running])
    restored = hall.submit([*prompt, 66], max_tokens=3)
    seen = []
    while not restored.closed:
        hall.step()
        seen.append((len(disk.reads), len(hall.texts[running]) - before))
    assert [count for count, _ in seen[:3]] == [1, 2, 3] and seen[0][1] > 0
    assert all(said == steps for steps, (_, said) in enumerate(seen, 1))
    hall.finish()
    assert hall.texts[restored] == letters(3, 600)
    assert restored.usage.cached_tokens == 600 - recurrent
    assert hall.stats.restored_tokens >= 599 and hall.stats.disk_bytes > 0


def test_a_short_prompt_does_not_wait_for_what_another_one_reads(
    tmp_path: Path, block_by_block: None
) -> None:
    written(tmp_path, [65] * 2000)
    hall, disk = hall_with(tmp_path)
    restored = hall.submit([*[65] * 2000, 66], max_tokens=3)
    hall.step()
    short = hall.submit([67] * 20, max_tokens=3)
    come(hall, lambda: short.closed)
    assert hall.texts[short] == letters(3, 19) and len(disk.reads) < 8
    assert hall.finish()[0] == letters(3, 2000) and restored.usage.cached_tokens == 2000


def test_prompts_read_one_after_the_other(tmp_path: Path) -> None:
    prompts = [[first] * 600 for first in (65, 66, 67)]
    written(tmp_path, *prompts)
    hall, disk = hall_with(tmp_path)
    disk.pause = 1.5 * prefill_file.READING
    running = hall.submit(max_tokens=200)
    hall.steps(3)
    handles = [hall.submit([*prompt, 1], max_tokens=2) for prompt in prompts]
    while not all(handle.closed for handle in handles):
        before = len(disk.reads)
        hall.step()
        assert len(disk.reads) <= before + 1
    assert [handle.usage.cached_tokens for handle in handles] == [600] * 3
    assert len(disk.reads) == 9 and not running.closed


def test_only_what_memory_lacks_is_read(tmp_path: Path) -> None:
    prompt = [(i * i) % 90 for i in range(4 * BLOCK)]
    written(tmp_path, prompt)
    hall, disk = hall_with(tmp_path)
    beginning = hall.submit([*prompt[:BLOCK], *[3] * 30], max_tokens=2)
    hall.finish()
    assert beginning.usage.cached_tokens == BLOCK and disk.reads == [BLOCK]
    whole = hall.submit([*prompt, 1], max_tokens=2)
    hall.finish()
    assert whole.usage.cached_tokens == 4 * BLOCK
    assert disk.reads == [BLOCK, 2 * BLOCK, 3 * BLOCK, 4 * BLOCK]  # each of them once


@pytest.mark.parametrize("recurrent", [False, True])
def test_two_that_want_the_same_share_one_reading(
    recurrent: bool, tmp_path: Path, block_by_block: None
) -> None:
    prompt = [65] * 600
    written(tmp_path, prompt, recurrent=recurrent)
    hall, disk = hall_with(tmp_path, recurrent=recurrent)
    both = [hall.submit([*prompt, end], max_tokens=2) for end in (1, 2)]
    hall.finish()
    assert [handle.usage.cached_tokens for handle in both] == [600 - recurrent] * 2
    assert len(disk.reads) == len(set(disk.reads)) == 3


def test_who_gives_up_leaves_nothing_behind(tmp_path: Path, block_by_block: None) -> None:
    prompt = [(i * i) % 90 for i in range(3 * BLOCK)]
    written(tmp_path, prompt)
    hall, disk = hall_with(tmp_path)
    gone = hall.submit([*prompt, 1], max_tokens=2)
    come(hall, lambda: disk.reads)
    hall.scheduler.cancel(gone)
    hall.scheduler.check_integrity()
    assert not hall.scheduler.busy
    del hall.texts[gone]
    other = hall.submit([*prompt[:BLOCK], *[2] * 9], max_tokens=2)  # what had come is there
    hall.finish()
    assert other.usage.cached_tokens == BLOCK and disk.reads == [BLOCK]
