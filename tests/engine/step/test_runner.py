"""Commands are all that a device needs: written down and carried out again, they give the same."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
import pytest

from mlxgen import LanguageModel, PostSamplingResult, Regex
from mlxgen.engine import runtime
from mlxgen.engine.kv.commands import (
    Command,
    Keep,
    Run,
    Take,
    Trim,
    Wait,
    read,
    written,
)
from mlxgen.engine.kv.feed import Shown
from mlxgen.engine.kv.groups import Slots
from mlxgen.engine.kv.runner import Runner
from mlxgen.engine.limits import Limits
from mlxgen.engine.options import Options
from mlxgen.engine.prefix.block_file import Layout
from mlxgen.engine.prefix.disk import Disk
from mlxgen.engine.prefix.store import BlockStore
from mlxgen.engine.request.accept import rewind
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.images import Patch
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import cache_kinds
from tests.fakes.seeing import asking, png, seeing

KINDS = ["plain", "sliding window", "recurrent", "hybrid", "quantised"]


class Recorder(Runner):
    """Remembers what it was told, and what came of it."""

    made: ClassVar[list[Recorder]] = []

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.heard: list[tuple[Command, Any]] = []
        self.made.append(self)

    def do(self, command: Command) -> Any:
        found = super().do(command)
        self.heard.append((command, found))
        return found


def declining(result: PostSamplingResult) -> None:
    result.resample = result.attempt == 0 and result.position % 3 == 1


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.8},
    {"filters": Regex("[A-Z]{3}ABCDEFGH[0-9]+")},
    {"draft": "ngram"},
    {"hooks": declining},
    {"temperature": 1.2, "banned": "A"},
]


def crowd(lm: LanguageModel, dice: random.Random, length: int = 20) -> None:
    """Requests of all kinds, with rewinds and forks on the way."""
    hall = Scheduler(lm.runtime, Limits(max_batch=4))
    common = [dice.randrange(90) for _ in range(length + 20)]
    handles = []
    for number, options in enumerate(OPTIONS):
        checked = Options.of({"max_tokens": 14, "seed": number, "ignore_eos": True, **options})
        handles.append(
            hall.submit(lm.runtime.prepare([*common[: length + 4 * number], number], checked))
        )
    for step in range(200):
        hall.step()
        running = [handle for handle in handles if not handle.closed]
        if not running:
            return
        if step % 5 == 4 and step < 30:
            chosen = dice.choice(running)
            rewind(chosen.request, chosen.request.position // 2)
        if step == 7:
            handles += hall.fork(running[0])
    raise AssertionError("it never ended")


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """Those that were made for models."""
    monkeypatch.setattr(runtime, "Runner", Recorder)
    monkeypatch.setattr(Recorder, "made", [])
    return Recorder.made


def told_again(
    first: Recorder, cache: BlockStore, lm: LanguageModel, images: dict[str, Any] | None = None
) -> None:
    """A runner that is told the same, in JSON, and has this prefix cache, does the same."""
    slots = Slots(first.make, lambda: lm.runtime.batches, lm.runtime.footprint.spare)
    second = Runner(lm.model, first.make, slots, lambda: cache, feed=Shown() if images else None)
    text = json.dumps([written(command) for command, _ in first.heard])
    for line, (_, found) in zip(json.loads(text), first.heard, strict=True):
        got = second.do(read(line, images or {}))
        if isinstance(found, mx.array):
            np.testing.assert_allclose(np.array(got), np.array(found), rtol=2e-3, atol=2e-4)
        else:
            assert type(got) is type(found)
    assert cache.nbytes == lm.prefix_cache.nbytes
    assert cache.disk.restored_tokens == lm.prefix_cache.disk.restored_tokens


@pytest.mark.parametrize("kind", KINDS)
def test_another_runner_that_is_told_the_same_computes_the_same(
    kind: str, runners: list[Recorder]
) -> None:
    model, make = cache_kinds()[kind]()
    lm = LanguageModel(model, alphabet_tokenizer())
    lm.runtime.make_cache = make  # type: ignore[method-assign]
    crowd(lm, random.Random(5))
    (first,) = runners
    assert {Run, Trim, Take, Keep, Wait} <= {type(command) for command, _ in first.heard}
    told_again(first, BlockStore(make, lm.prefix_cache.max_bytes), lm)


@pytest.mark.parametrize("kind", ["plain", pytest.param("hybrid", marks=pytest.mark.slow)])
def test_what_is_restored_from_disk_is_told_to_another_runner_as_well(
    kind: str, tmp_path: Path, runners: list[Recorder]
) -> None:
    model, make = cache_kinds()[kind]()
    for _ in range(2):
        lm = LanguageModel(model, alphabet_tokenizer(), cache_dir=tmp_path / "one")
        if runners:
            shutil.copytree(tmp_path / "one", tmp_path / "other")
        crowd(lm, random.Random(5), 300)
        assert lm.prefix_cache.flush(20)
    first = runners[-1]
    assert any(isinstance(each, Keep) and each.of is None for each, _ in first.heard)
    disk = Disk(tmp_path / "other", 1 << 30, Layout(make, model))
    told_again(first, BlockStore(make, lm.prefix_cache.max_bytes, folder=disk), lm)
    assert lm.prefix_cache.disk.restored_tokens > 0


def test_images_are_written_down_as_digests_and_rows(runners: list[Recorder]) -> None:
    lm = seeing()
    prompts = [asking(png(1), png(2)), asking(png(2)), asking(png(1), png(2), text="and now?")]
    list(lm.batch(prompts, max_tokens=6, limits=Limits(max_batch=2)))
    (first,) = runners
    tokens = [t for command, _ in first.heard if isinstance(command, Take) for t in command.tokens]
    images = {token.image.digest: token.image for token in tokens if isinstance(token, Patch)}
    assert len(images) == 2
    text = json.dumps([written(command) for command, _ in first.heard])
    assert "pixels" not in text and len(text) < 40_000
    told_again(first, BlockStore(first.make, lm.prefix_cache.max_bytes), lm, images)
