"""What one sequence does to the model, no other notices."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import ArraysCache

import mlxgen
from mlxgen import Regex
from mlxgen.errors import CapacityError, ModelError
from tests.fakes.failing import HOWS, MESSAGE, How, Unread, broken, fail
from tests.fakes.speaking import PROMPT, Hall, Speaker, endless, letters

from ...effort import tries
from .company import SCRIPTED, Company, model_with
from .test_company import happen, limits_of

POISON = ord("~")

each_way = pytest.mark.parametrize("how", HOWS)
each_cache = pytest.mark.parametrize("recurrent", [False, True])


@pytest.fixture(autouse=True)
def unread(monkeypatch: pytest.MonkeyPatch) -> Unread:
    """Failures that show when the tokens are read."""
    return Unread(monkeypatch)


def speaker_of(*, recurrent: bool = False) -> Speaker:
    return endless(**({"make_cache": lambda: [ArraysCache(1)]} if recurrent else {}))


def poisoned(history: tuple[int, ...]) -> bool:
    return POISON in history


class FailingAt:
    """A model every so many-th pass of which fails."""

    def __init__(self, model: Any, every: int, how: How, unread: Unread) -> None:
        self._model, self._every, self._how, self._unread = model, every, how, unread
        self._passes = 0

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        self._passes += 1
        logits: mx.array = self._model(inputs, cache=cache)
        ill = self._passes % self._every == 0
        return broken(logits, self._how, self._unread) if ill else logits


@each_way
@each_cache
@pytest.mark.parametrize("at", [1, 2, 7])
def test_a_token_that_the_model_fails_with_ends_its_row_behind_all_that_came_before(
    how: How, unread: Unread, recurrent: bool, at: int
) -> None:
    speaker = speaker_of(recurrent=recurrent)
    fail(speaker, poisoned, how, unread)
    hall = Hall(speaker)
    hall.submit(max_tokens=30)
    ill = hall.submit(filters=Regex(f"[a-z]{{{at}}}~[a-z]+"), max_tokens=30)
    hall.submit(max_tokens=9)
    hall.steps(3)
    hall.submit([63] * 50, max_tokens=30)
    texts = hall.finish()
    assert texts == [letters(30), letters(at) + "~", letters(9), letters(30, 49)]
    assert [*hall.errors] == [ill]
    assert MESSAGE in str(hall.errors[ill]) or how != "built"
    assert hall.stats.kv_bytes == 0


@each_way
@pytest.mark.parametrize("rows", [1, 3])
def test_what_goes_wrong_once_goes_wrong_for_nobody(how: How, unread: Unread, rows: int) -> None:
    speaker = endless()
    times: list[int] = []

    def once(history: tuple[int, ...]) -> bool:
        if len(history) == 6 and not times:
            times.append(1)
            return True
        return False

    hall = Hall(speaker)
    fail(speaker, once, how, unread)
    for i in range(rows):
        hall.submit(max_tokens=12, seed=i, temperature=0.7)
    assert hall.finish() == [letters(12)] * rows
    assert not hall.errors


@each_way
def test_what_fails_with_everything_fails_everybody_and_not_the_engine(
    how: How, unread: Unread
) -> None:
    hall = Hall(speaker := endless())
    broken = [True]
    fail(speaker, lambda _: broken[0], how, unread)
    alone = hall.submit(max_tokens=5)
    hall.finish()
    assert isinstance(hall.errors[alone], ModelError)
    ill = [hall.submit(max_tokens=5) for _ in range(3)]
    hall.finish()
    assert [type(hall.errors[handle]) for handle in ill] == [ModelError] * 3
    broken[0] = False
    unread.failures = 0
    well = [hall.submit(max_tokens=5) for _ in range(3)]
    hall.finish()
    assert [hall.texts[handle] for handle in well] == [letters(5)] * 3


def test_a_device_without_memory_gives_up_its_prefixes_and_what_is_too_large_for_it() -> None:
    speaker = endless()
    hall = Hall(speaker)
    hall.submit([65] * 200, max_tokens=2)
    hall.finish()
    script = speaker.model.script

    def short(history: tuple[int, ...]) -> Any:
        if hall.stats.cache_bytes > 1000 or len(history) > 300:
            raise RuntimeError("[metal::malloc] Unable to allocate 123 bytes.")
        return script(history)

    speaker.model.script = short
    for _ in range(2):
        hall.submit(max_tokens=6)
    assert hall.finish()[1:] == [letters(6)] * 2 and not hall.errors
    large = hall.submit([66] * 310, max_tokens=6)
    hall.submit(max_tokens=6)
    assert hall.finish()[3:] == ["", letters(6)]
    assert isinstance(hall.errors[large], CapacityError)


def test_prefixes_that_a_failure_may_have_spoilt_are_dropped_and_no_others(unread: Unread) -> None:
    hall = Hall(endless())
    cache = hall.scheduler.cache
    assert cache is not None
    old, new = [65] * 80, [66] * 80  # more than go through in one pass
    hall.submit(old, max_tokens=8)
    hall.finish()
    handle = hall.submit(new, max_tokens=12)
    while not cache.match(new):
        hall.step()
    assert cache.match(old) and not unread.failures and not handle.closed
    unread.failures = 1  # nobody has read anything that was submitted after the copy
    while not hall.stats.faults:
        hall.step()
    assert not cache.match(new) and cache.match(old) == 79
    hall.finish()
    assert not hall.errors and hall.texts[handle] == letters(12, 79)
    handle = hall.submit(new, max_tokens=12)  # whoever comes later, with all that is kept since
    hall.steps(8)
    unread.failures = 1
    hall.finish()
    assert cache.match(new) == 79 and hall.stats.faults == 2


def test_a_prefix_cache_that_fails_costs_no_row() -> None:
    hall = Hall(endless())
    cache = hall.scheduler.cache
    assert cache is not None

    def broken(*_: Any) -> Any:
        raise RuntimeError(MESSAGE)

    for name in ("match", "take", "keep"):
        setattr(cache, name, broken)
    for _ in range(3):
        hall.submit([65] * 60, max_tokens=4)
    assert hall.finish() == [letters(4, 59)] * 3
    assert not hall.errors


@each_way
def test_a_draft_that_fails_is_done_without(how: How, unread: Unread) -> None:
    speaker, drafting = endless(), endless()
    fail(drafting, lambda history: len(history) > 8, how, unread)
    hall = Hall(speaker)
    hall.submit(max_tokens=20, draft=drafting.lm)
    hall.submit(max_tokens=20)
    assert hall.finish() == [letters(20)] * 2


# ---- the ways in


@each_way
def test_a_batch_raises_for_the_prompt_at_fault_and_goes_on(how: How, unread: Unread) -> None:
    speaker = endless()
    fail(speaker, poisoned, how, unread)
    batch = speaker.lm.batch([PROMPT, [POISON] * 3, PROMPT], max_tokens=5)
    errors = []
    while True:
        try:
            next(batch)
        except StopIteration:
            break
        except ModelError as error:
            errors.append(error)
    assert [result and result.text for result in batch.results] == [letters(5), None, letters(5)]
    assert errors == [batch.errors[1]]
    assert errors[0].__notes__ == ["in prompts[1]"]
    assert isinstance(errors[0].__cause__, RuntimeError)


# ---- what was accepted before an error


@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("max_batch", [1, 3])
def test_what_was_forced_before_a_start_failed_is_delivered(fork: bool, max_batch: int) -> None:
    hall = Hall(endless(), max_batch=max_batch, keep_prefixes=False)
    options: dict[str, Any] = {"banned": ["B"], "filters": Regex("ABCDEFGH"), "max_tokens": 5}
    handle = hall.submit([5] * 20, **options)
    if fork:
        hall.fork(handle)
    texts = hall.finish()
    alone = ""
    with pytest.raises(mlxgen.MlxgenError) as error:
        for chunk in hall.speaker.lm.stream([5] * 20, **options):
            alone += chunk.text
    assert texts == [alone] * (2 if fork else 1)
    assert alone == "A"
    assert {repr(each) for each in hall.errors.values()} == {repr(error.value)}


# ---- many at once


@pytest.mark.parametrize("kind", [*SCRIPTED, "plain", "hybrid"])
@settings(max_examples=tries(48), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_in_a_crowd_that_the_model_fails_with_now_and_then_nobody_loses_or_repeats_anything(
    kind: str, unread: Unread, data: st.DataObject
) -> None:
    lm = model_with(kind)
    sound, every = lm.model, data.draw(st.sampled_from([5, 17, 40]))
    unread.failures = 0
    company = Company(lm, limits_of(lm, data))
    lm.runtime.prefix_cache.clear()
    failing = FailingAt(sound, every, data.draw(st.sampled_from(HOWS)), unread)
    company.scheduler._loop.runner.model = failing
    for _ in range(data.draw(st.integers(5, 25), "moments")):
        happen(company, kind, data, 6)
    company.finish()
    unread.failures = 0
    company.compare()
