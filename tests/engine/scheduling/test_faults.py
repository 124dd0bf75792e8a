"""What goes wrong with the model, in a batch and in a crowd; that nobody else notices it is in the
table of schedules as well."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import Regex
from mlxgen.errors import ModelError
from tests.fakes.failing import HOWS, How, Unread, broken, fail
from tests.fakes.speaking import PROMPT, Hall, endless, letters

from ...effort import tries
from .test_company import SCRIPTED, Company, happen, limits_of, model_with

POISON = ord("~")


@pytest.fixture(autouse=True)
def unread(monkeypatch: pytest.MonkeyPatch) -> Unread:
    """Failures that show when the tokens are read."""
    return Unread(monkeypatch)


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


# ---- the ways in


@pytest.mark.parametrize("how", HOWS)
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
