"""What one sequence does to the model, no other notices."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
from mlx_lm.models.cache import ArraysCache

import mlxgen
from mlxgen import Choice, LanguageModel, Limits, Regex
from mlxgen.engine.options import Options
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.errors import CapacityError, ModelError
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import VOCAB, cache_kinds
from tests.fakes.failing import HOWS, MESSAGE, FailingOn, How, Unread, fail
from tests.fakes.speaking import PROMPT, Hall, Speaker, endless, letters

from . import test_random_company

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


@each_way
@each_cache
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_prompt_that_the_model_fails_with_fails_alone(
    how: How, unread: Unread, recurrent: bool, place: int
) -> None:
    speaker = speaker_of(recurrent=recurrent)
    hall = Hall(speaker)
    fail(speaker, poisoned, how, unread)
    for i in range(4):
        prompt = [POISON] if i == place else PROMPT
        hall.submit(prompt * 20, max_tokens=12)
        hall.steps(2)
    texts = hall.finish()
    (ill,) = hall.errors.values()
    assert isinstance(ill, ModelError)
    assert texts == ["" if i == place else letters(12, 19) for i in range(4)]
    assert hall.stats.kv_bytes == 0


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
def test_several_that_the_model_fails_with_fail_and_the_others_do_not(
    how: How, unread: Unread
) -> None:
    speaker = endless()
    fail(speaker, poisoned, how, unread)
    hall = Hall(speaker, max_batch=5)
    for i in range(9):
        pattern = Regex(f"[a-z]{{{i}}}~[a-z]+") if i % 3 == 1 else None
        hall.submit([*[63] * i, 63], max_tokens=12, filters=pattern)
    texts = hall.finish()
    for i, text in enumerate(texts):
        whole = letters(12, i)
        assert text == (whole[:i] + "~" if i % 3 == 1 else whole)
    assert len(hall.errors) == 3


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
def test_a_row_that_is_poisoned_on_an_idle_engine_does_not_kill_it(
    how: How, unread: Unread
) -> None:
    speaker = endless()
    fail(speaker, poisoned, how, unread)
    hall = Hall(speaker)
    ill = hall.submit([POISON] * 3)
    hall.finish()
    assert isinstance(hall.errors[ill], ModelError)
    hall.submit(max_tokens=5)
    assert hall.finish()[1] == letters(5)


@each_way
def test_what_fails_with_everything_fails_everybody_and_not_the_engine(
    how: How, unread: Unread
) -> None:
    hall = Hall(speaker := endless())
    broken = [True]
    fail(speaker, lambda _: broken[0], how, unread)
    ill = [hall.submit(max_tokens=5) for _ in range(3)]
    hall.finish()
    assert [type(hall.errors[handle]) for handle in ill] == [ModelError] * 3
    broken[0] = False
    unread.failures = 0
    well = [hall.submit(max_tokens=5) for _ in range(3)]
    hall.finish()
    assert [hall.texts[handle] for handle in well] == [letters(5)] * 3


def test_a_device_without_memory_gives_up_its_prefixes_first() -> None:
    speaker = endless()
    hall = Hall(speaker)
    hall.submit([65] * 200, max_tokens=2)
    hall.finish()
    script = speaker.model.script

    def short(history: tuple[int, ...]) -> Any:
        if hall.stats.cache_bytes > 1000:
            raise RuntimeError("[metal::malloc] Unable to allocate 123 bytes.")
        return script(history)

    speaker.model.script = short
    for _ in range(2):
        hall.submit(max_tokens=6)
    assert hall.finish()[1:] == [letters(6)] * 2
    assert not hall.errors


def test_a_row_that_no_memory_is_enough_for_is_refused_as_too_large() -> None:
    speaker = endless()
    hall = Hall(speaker)
    script = speaker.model.script

    def short(history: tuple[int, ...]) -> Any:
        if len(history) > 300:
            raise RuntimeError("[metal::malloc] Unable to allocate 123 bytes.")
        return script(history)

    speaker.model.script = short
    large = hall.submit([65] * 310, max_tokens=6)
    hall.submit(max_tokens=6)
    assert hall.finish() == ["", letters(6)]
    assert isinstance(hall.errors[large], CapacityError)


def test_a_prefix_that_the_model_fails_with_is_dropped_and_not_the_row() -> None:
    speaker = endless()
    hall = Hall(speaker)
    hall.submit([65] * 40, max_tokens=2)
    hall.finish()
    script = speaker.model.script
    speaker.model.forget()

    def from_the_cache(history: tuple[int, ...]) -> Any:
        if len(speaker.model.rows[0][0]) < 20:  # the prompt was not run
            raise RuntimeError(MESSAGE)
        return script(history)

    speaker.model.script = from_the_cache
    again = hall.submit([65] * 45, max_tokens=4)
    for _ in range(100):
        if not hall.scheduler.busy:
            break
        if hall.stats.faults and not again.cached:
            speaker.model.script = script
        hall.step()
    assert hall.texts[again] == letters(4, 44)


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


@pytest.mark.parametrize(
    "what, step", list(product(["rewind", "cancel", "fork", "submit"], range(8)))
)
def test_callers_may_do_all_that_they_may_after_a_fault(
    what: str, step: int, unread: Unread
) -> None:
    speaker = endless()
    fail(speaker, poisoned, "read", unread)
    hall = Hall(speaker)
    handles = [hall.submit(max_tokens=20) for _ in range(3)]
    handles.insert(1, hall.submit(filters=Regex("[a-z]{3}~[a-z]+"), max_tokens=20))
    while not hall.stats.faults:
        hall.step()
    hall.steps(step)
    for handle in handles:
        if handle.closed:
            continue
        match what:
            case "rewind":
                hall.rewind(handle, handle.request.position // 2)
            case "cancel" if handle is not handles[0]:
                hall.scheduler.cancel(handle)
            case "fork":
                hall.fork(handle)
            case "submit":
                hall.submit(max_tokens=3)
    hall.finish()
    for handle, text in hall.texts.items():
        wanted = "abc~" if handle.request.options.filters else letters(handle.request.budget)
        assert wanted.startswith(text) if what == "cancel" else text == wanted
    assert hall.texts[handles[0]] == letters(20)
    assert hall.stats.kv_bytes == 0 and not hall.scheduler.busy


@each_way
def test_a_draft_that_fails_is_done_without(how: How, unread: Unread) -> None:
    speaker, drafting = endless(), endless()
    fail(drafting, lambda history: len(history) > 8, how, unread)
    hall = Hall(speaker)
    hall.submit(max_tokens=20, draft=drafting.lm)
    hall.submit(max_tokens=20)
    assert hall.finish() == [letters(20)] * 2


KINDS = [*cache_kinds()]


@pytest.mark.parametrize(
    "kind, how",
    [*((kind, "built") for kind in KINDS), *product(("plain", "hybrid"), HOWS[1:])],
)
def test_real_models_go_on_with_the_others(kind: str, how: How, unread: Unread) -> None:
    model, make = cache_kinds()[kind]()

    def texts(lm: Any, limits: Limits, prompts: list[list[int]]) -> list[Any]:
        scheduler = Scheduler(lm.runtime, limits)
        said: dict[Any, list[int | None]] = {}
        failed = []
        for i, prompt in enumerate(prompts):
            options = Options.of({"max_tokens": 12, "seed": i, "ignore_eos": True})
            said[scheduler.submit(lm.runtime.prepare(prompt, options))] = []
        while scheduler.busy:
            for event in scheduler.step():
                said[event.handle] += [chunk.token for chunk in event.chunks]
                failed += [event.handle] if event.error is not None else []
            scheduler.check_integrity()
        assert scheduler.stats().kv_bytes == 0
        return [None if handle in failed else tokens for handle, tokens in said.items()]

    def lm_of(module: Any) -> LanguageModel:
        lm = LanguageModel(module, alphabet_tokenizer())
        lm.runtime.make_cache = make  # type: ignore[method-assign]
        return lm

    prompts = [[(7 * i + j) % 90 for j in range(3 + 9 * i)] for i in range(4)]
    sound = [texts(lm_of(model), Limits(), [prompt])[0] for prompt in prompts]
    poison = max({*range(VOCAB)}.difference(*prompts, *sound))
    prompts.insert(2, [1, 2, poison, 3])
    failing = lm_of(FailingOn(model, poison, how, unread))
    for limits in (Limits(), Limits(max_batch=2, keep_prefixes=False)):
        mixed = texts(failing, limits, prompts)
        assert mixed.pop(2) is None
        assert mixed == sound


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


@each_way
@pytest.mark.parametrize("forced", ["", "ab"])
def test_a_stream_gives_what_came_before_the_failure_and_goes_on_after_a_rewind(
    how: How, unread: Unread, forced: str
) -> None:
    speaker = endless()
    ill = [True]
    fail(speaker, lambda history: ill[0] and len(history) == 6, how, unread)
    stream = speaker.lm.stream(PROMPT, max_tokens=12, filters=Regex(f"{forced}[a-z]+"))
    text = ""
    with pytest.raises(ModelError):
        for chunk in stream:
            text += chunk.text
    assert text and letters(12).startswith(text) and stream.text == text
    with pytest.raises(mlxgen.StateError):
        next(stream)
    ill[0] = False
    stream.rewind(tokens=0)
    assert text + "".join(chunk.text for chunk in stream) == letters(12) == stream.text


def test_a_stream_that_fails_as_it_runs_what_it_is_to_keep_can_be_gone_on_with() -> None:
    speaker = endless(make_cache=lambda: [ArraysCache(1)])
    ill = [True]
    fail(speaker, lambda history: ill[0] and len(history) == 30)
    stream = speaker.lm.stream([63] * 40, max_tokens=5)
    with pytest.raises(ModelError):
        stream.keep(30)
    ill[0] = False
    stream.rewind(tokens=0)
    assert "".join(chunk.text for chunk in stream) == letters(5, 39)


def test_a_stream_that_is_interrupted_as_it_begins_gives_nothing_twice() -> None:
    speaker = endless()
    script = speaker.model.script

    def interrupted(history: tuple[int, ...]) -> Any:
        speaker.model.script = script
        raise KeyboardInterrupt

    speaker.model.script = interrupted
    stream = speaker.lm.stream(PROMPT, max_tokens=6, filters=Regex("ab[a-z]+"))
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    text = stream.text
    stream.rewind(tokens=0)
    assert text + "".join(chunk.text for chunk in stream) == letters(6) == stream.text


@each_way
def test_a_branch_that_the_model_fails_with_ends_alone(how: How, unread: Unread) -> None:
    from mlxgen import Branch

    speaker = endless()
    fail(speaker, poisoned, how, unread)

    class Splitting:
        def __init__(self) -> None:
            self.asked = 0

        def mid_process(self, index: int, back: int, tokens: Any) -> list[Branch]:
            self.asked += 1
            if self.asked == 1:
                return [Branch(ff_tokens=[[t]]) for t in (POISON, 97)]
            return [Branch(sample_mask=None, ff_tokens=[[98]])] if self.asked < 8 else []

    control = speaker.lm.control(PROMPT, Splitting(), max_tokens=10)
    errors = []
    while True:
        try:
            next(control)
        except StopIteration:
            break
        except ModelError as error:
            errors.append(error)
    assert control.results[(1,)].text == "abbbbbb"


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


def test_a_choice_of_one_needs_no_model_and_fails_with_none() -> None:
    speaker = endless()
    fail(speaker, lambda _: True)
    assert speaker.lm.generate(PROMPT, filters=Choice(["xyz"])).text == "xyz"


# ---- many at once


@pytest.mark.parametrize("seed", range(12))
def test_in_a_crowd_that_the_model_fails_with_now_and_then_nobody_loses_or_repeats_anything(
    seed: int, monkeypatch: pytest.MonkeyPatch, unread: Unread
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(Scheduler, "_chunk", lambda _: dice.choice([0, 4, 16, 16, 64]))
    sound, calls = [False], [0]

    def now_and_then(history: tuple[int, ...]) -> bool:
        calls[0] += 1
        return not sound[0] and calls[0] % 97 == 0

    steady = test_random_company.mumbling.__wrapped__

    def unsteady(*, recurrent: bool = False) -> Speaker:
        speaker: Speaker = steady(recurrent=recurrent)
        assert speaker.lm.runtime.batches
        fail(speaker, now_and_then, dice.choice(HOWS), unread)
        return speaker

    monkeypatch.setattr(test_random_company, "mumbling", unsteady)
    hall, asked = test_random_company.crowd(dice)
    sound[0] = True
    unread.failures = 0
    for handle, one in asked.items():
        error = hall.errors.get(handle)
        if not one.certain or isinstance(error, CapacityError):
            continue
        alone = test_random_company.alone(hall.speaker, one)
        if error is None:
            assert hall.texts[handle] == alone, one
        elif isinstance(error, ModelError):  # it was tried when it failed again
            assert alone.startswith(hall.texts[handle]) or "Error(" in alone, one
        else:
            assert repr(error) == alone
    assert hall.stats.kv_bytes == 0
