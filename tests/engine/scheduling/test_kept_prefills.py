"""What was run of a prompt that is given up: it is there for whoever asks again."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache

from mlxgen import LanguageModel, Limits
from mlxgen.engine.options import Options
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.engine.step.handle import Handle
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import cache_kinds
from tests.fakes.paces import Still
from tests.fakes.speaking import Hall, endless, letters

PIECE = 20
LONG = [(7 * i) % 89 for i in range(90)]


def model_of(kind: str) -> LanguageModel:
    model, make = cache_kinds()[kind]()
    lm = LanguageModel(model, alphabet_tokenizer())
    lm.runtime.make_cache = make  # type: ignore[method-assign]
    lm.runtime.pace = Still()
    return lm


def tokens_of(scheduler: Scheduler, handle: Handle) -> list[int]:
    """All that a sequence generates."""
    tokens = []
    while not handle.closed:
        for event in scheduler.step():
            assert event.error is None
            tokens += [chunk.token for chunk in event.chunks if event.handle is handle]
    return [token for token in tokens if token is not None]


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("kind", [kind for kind in cache_kinds() if kind != "concatenating"])
def test_who_asks_again_goes_on_from_there_whatever_the_caches(kind: str, pieces: int) -> None:
    lm, options = model_of(kind), Options.of({"max_tokens": 6, "temperature": 0})
    alone = Scheduler(lm.runtime, Limits(prefill_chunk=PIECE, keep_prefixes=False))
    expected = tokens_of(alone, alone.submit(lm.runtime.prepare(LONG, options)))
    scheduler = Scheduler(lm.runtime, Limits(prefill_chunk=PIECE))
    for asked in range(1, 3):  # and gives it up again
        gone = scheduler.submit(lm.runtime.prepare(LONG, options))
        for _ in range(pieces):
            scheduler.step()
        ran = gone.prefilled
        assert ran == asked * pieces * PIECE
        scheduler.cancel(gone)
        scheduler.check_integrity()
    again = scheduler.submit(lm.runtime.prepare(LONG, options))
    assert tokens_of(scheduler, again) == expected
    assert again.usage.cached_tokens == ran


@pytest.mark.parametrize("recurrent", [False, True])
def test_nothing_is_run_twice_and_nobody_waits_for_what_is_kept(
    recurrent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches: dict[str, Any] = {"make_cache": lambda: [ArraysCache(1)]} if recurrent else {}
    hall = Hall(endless(**caches), prefill_chunk=50)
    running = hall.submit(max_tokens=60)
    hall.steps(4)
    gone = hall.submit([65] * 400, max_tokens=5)
    hall.steps(4)
    ran = gone.prefilled
    assert 0 < ran < 399

    def wait(*arrays: Any) -> None:
        raise AssertionError("the device was waited for")

    with monkeypatch.context() as patched:
        patched.setattr(mx, "eval", wait)
        hall.scheduler.cancel(gone)
    del hall.texts[gone]
    hall.speaker.model.forget()
    again = hall.submit([65] * 400, max_tokens=5)
    before = len(hall.texts[running])
    hall.steps(3)
    assert len(hall.texts[running]) == before + 3
    assert hall.finish() == [letters(60), letters(5, 399)]
    assert again.usage.cached_tokens == ran
    fresh = [row for rows in hall.speaker.model.rows for row in rows if row[0] == 65]
    assert sum(map(len, fresh)) == 400 - ran


@pytest.mark.parametrize("recurrent", [False, True])
def test_as_much_of_it_is_kept_as_there_are_bytes_for(recurrent: bool) -> None:
    caches: dict[str, Any] = {"make_cache": lambda: [ArraysCache(1)]} if recurrent else {}
    size = 4 * 1025 if recurrent else 8 * 1024  # of what is run of it
    hall = Hall(endless(**caches), prefill_chunk=300, max_bytes=int(1.6 * size))
    gone = hall.submit([65] * 1000, max_tokens=3)
    hall.steps(3)
    assert gone.prefilled == 900
    hall.scheduler.cancel(gone)
    hall.scheduler.check_integrity()
    kept = hall.stats.cache_bytes
    assert kept == 0 if recurrent else size / 5 < kept < size / 2
    again = hall.submit([65] * 1000, max_tokens=3)
    hall.finish()
    assert hall.texts[again] == letters(3, 999)
    assert again.usage.cached_tokens == kept // 8
