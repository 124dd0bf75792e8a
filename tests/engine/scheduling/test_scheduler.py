"""Who runs, who waits and who has to give way; and what of it nobody can tell from the text."""

from __future__ import annotations

import itertools
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache

from mlxgen import Limits, OptionError, Regex, StateError
from mlxgen.engine.step.handle import Handle
from mlxgen.engine.step.pace import Pace
from mlxgen.errors import CapacityError, QueueFullError
from tests.fakes.speaking import Hall, endless, letters

BYTES = 8  # of a token in the scripted model's cache: a key and a value
STEP = 256 * BYTES  # caches grow by so many tokens


# ---- the queue


def test_no_more_wait_than_the_queue_holds_whenever_they_come() -> None:
    hall = Hall(endless(), max_batch=2, max_queue=3)
    for _ in range(5):
        hall.submit(max_tokens=4)
    with pytest.raises(QueueFullError, match=r"max_queue=3"):
        hall.submit()
    hall.step()
    with pytest.raises(QueueFullError):
        hall.submit()
    hall.finish()
    hall.submit(max_tokens=4)
    assert hall.finish() == [letters(4)] * 6


def test_a_fork_that_finds_no_room_changes_nothing() -> None:
    hall = Hall(endless(), max_batch=1, max_queue=1)
    first = hall.submit(max_tokens=6)
    hall.steps(2)
    with pytest.raises(QueueFullError):
        hall.scheduler.fork(first, 3)
    with pytest.raises(OptionError):
        hall.scheduler.fork(first, 0)
    assert hall.finish() == [letters(6)]
    with pytest.raises(StateError):
        hall.scheduler.fork(first)
    with pytest.raises(OptionError):
        Limits(prefill_chunk=64, longest_gap=0.5)


# ---- bytes


@pytest.mark.parametrize("options", [{}, {"filters": Regex("[ab]x{600}[ab]*")}])
def test_a_row_that_outgrows_all_bytes_fails_alone(options: dict[str, Any]) -> None:
    hall = Hall(endless(), max_bytes=2 * STEP)
    with pytest.raises(CapacityError):
        hall.submit([63] * 600)
    large = hall.submit(max_tokens=None, **options)
    small = hall.submit(max_tokens=20)
    hall.finish()
    assert isinstance(hall.errors[large], CapacityError)
    assert list(hall.errors) == [large]
    assert hall.texts[small] == letters(20)


def test_nobody_goes_before_one_that_finds_no_bytes() -> None:
    hall = Hall(endless(), max_bytes=14 * STEP, keep_prefixes=False, prefill_chunk=100)
    hall.submit([63] * 2000, max_tokens=5)
    second = hall.submit([64] * 2000, max_tokens=5)
    short = [hall.submit([70 + i] * 20, max_tokens=2) for i in range(3)]
    hall.step()
    waits = [*hall.scheduler.waiting]
    assert waits == [second, *short]
    while second in hall.scheduler.waiting:
        assert not any(hall.texts[handle] for handle in short)
        hall.step()
    assert hall.finish() == [letters(5, 1999)] * 2 + [letters(2, 19)] * len(short)


@pytest.mark.parametrize("draft", ["off", "ngram"])
def test_what_gives_way_starts_again_and_says_the_same(draft: str) -> None:
    hall = Hall(endless(), max_bytes=int(10.5 * STEP), keep_prefixes=False, max_batch=3)
    for i in range(3):
        last = hall.submit([63 + i] * 5, max_tokens=560, seed=i, draft=draft)
    other = hall.submit(max_tokens=5)
    while not hall.stats.preempted:
        hall.step()
    assert [*hall.scheduler.waiting] == [last, other]
    assert hall.finish() == [*[letters(560, 4)] * 3, letters(5)]


def test_prefixes_go_before_any_row_has_to() -> None:
    hall = Hall(endless(), max_bytes=8 * STEP)
    for i in range(6):
        hall.submit([63 + i] * 250, max_tokens=3)
        hall.finish()
    full = hall.stats.cache_bytes
    assert full >= 5 * 250 * BYTES
    for i in range(2):
        hall.submit([90 + i] * 10, max_tokens=300)
    hall.finish()
    assert hall.stats.preempted == 0
    hall.submit([92] * 1000, max_tokens=3)
    hall.steps(2)
    assert hall.stats.cache_bytes < full


def test_a_conversation_goes_on_though_there_is_no_room_for_it_and_a_copy() -> None:
    hall = Hall(endless(), max_bytes=12 * STEP)  # 9 of which it needs to run
    first = hall.submit([63] * 2000, max_tokens=5)
    hall.finish()
    said = first.request.tokens
    second = hall.submit([*[63] * 2000, *said, *[64] * 100], max_tokens=5)
    other = hall.submit([65] * 10, max_tokens=5)
    hall.finish()
    third = hall.submit([*[63] * 2000, *said, *[64] * 100, *second.request.tokens, 66])
    hall.steps(2)
    cached = [handle.usage.cached_tokens for handle in (first, second, other, third)]
    assert cached == [0, 2004, 0, 2109]


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("draft", ["off", "ngram"])
def test_a_row_that_is_set_aside_holds_nothing_and_goes_on_where_it_was(
    draft: str, steps: int
) -> None:
    hall = Hall(endless(), max_batch=2)
    other = hall.submit(max_tokens=30)
    aside = hall.submit([63] * 600, max_tokens=20, draft=draft)
    hall.steps(steps)
    ran = aside.kv.length
    hall.scheduler.set_aside(aside)
    assert not aside.kv.length and hall.stats.queued == 0
    hall.finish()
    assert hall.texts[other] == letters(30)
    assert not hall.scheduler.busy and hall.stats.kv_bytes == 0
    assert hall.stats.completion_tokens == 30 + aside.request.position
    hall.scheduler.resume(aside)
    hall.finish()
    assert aside.cached >= min(ran, 599)  # the prefix cache has kept it
    assert hall.texts[aside] == hall.speaker.lm.generate([63] * 600, max_tokens=20).text
    assert hall.stats.completion_tokens == 50


def test_closing_frees_everything_but_the_prefixes() -> None:
    hall = Hall(endless(), max_batch=3)
    for i in range(6):
        hall.submit([63 + i] * 40, max_tokens=50)
    hall.steps(9)
    hall.scheduler.close()
    hall.scheduler.close()
    assert not hall.scheduler.busy
    assert hall.stats.kv_bytes == 0
    assert hall.scheduler.step() == []


@pytest.mark.parametrize("long_first", [True, False])
def test_a_long_row_runs_next_to_the_short_ones_and_keeps_none_of_them_out(
    long_first: bool,
) -> None:
    hall = Hall(endless(), keep_prefixes=False)
    for length in (900, 5, 5, 5, 5, 5) if long_first else (5, 5, 5, 5, 5, 900):
        hall.submit([63] * length, max_tokens=120)
        hall.steps(2)
    hall.steps(60)
    hall.speaker.model.forget()
    hall.steps(3)
    assert sorted(len(rows) for rows in hall.speaker.model.rows) == [1, 1, 1, 5, 5, 5]
    assert sorted(hall.finish()) == sorted([letters(120, 899), *[letters(120, 4)] * 5])


# ---- who waits for whom


def tokens_by_step(hall: Hall, handles: list[Handle]) -> list[int]:
    """One step: how many tokens each of the rows gave."""
    given = dict.fromkeys(handles, 0)
    for event in hall.step():
        if event.handle in given:
            given[event.handle] += len(event.chunks)
    return list(given.values())


def test_a_long_prompt_is_run_between_the_steps_of_the_others() -> None:
    hall = Hall(endless(), keep_prefixes=False)
    running = [hall.submit(max_tokens=900) for _ in range(2)]
    hall.steps(8)
    hall.submit([65] * 900, max_tokens=5)
    pieces = 0
    while hall.waiting:
        assert tokens_by_step(hall, running) == [1, 1]
        pieces += 1
    assert pieces >= 2
    hall.finish()


def test_a_short_prompt_with_nobody_beside_it_goes_through_in_the_pass_of_its_first_draw() -> None:
    hall = Hall(endless())
    hall.submit([63] * 9, max_tokens=3)
    hall.steps(2)
    assert list(hall.texts.values()) == [letters(1, 8)]
    assert [len(tokens) for tokens in hall.speaker.model.fed] == [9]  # it is out before the next
    assert hall.finish() == [letters(3, 8)]
    assert [len(tokens) for tokens in hall.speaker.model.fed] == [9, 1, 1]


@pytest.mark.parametrize("others", [0, 1])
def test_the_buffer_cache_is_cleared_again_and_again_while_a_prompt_is_run(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hall = Hall(endless(), keep_prefixes=False, prefill_chunk=512)
    for _ in range(others):
        hall.submit(max_tokens=40)
    hall.steps(3)
    cleared = []
    monkeypatch.setattr(mx, "clear_cache", lambda: cleared.append(hall.tokens_run))
    hall.submit([63] * 6_500, max_tokens=2)
    while hall.waiting:
        hall.step()
    assert len(cleared) == 3
    assert all(later - before < 2_200 for before, later in itertools.pairwise(cleared))


def test_one_long_step_moves_the_mean_little_and_a_short_one_at_once() -> None:
    pace = Pace()
    pace.saw_step(1, 0.01)
    assert pace.step(30) == 0.01  # unknown numbers of rows are like the nearest
    pace.saw_step(1, 9.0)  # the machine was busy otherwise
    assert 0.01 < pace.step(1) < 0.02
    pace.saw_step(1, 0.001)
    assert pace.step(1) == 0.001


def test_long_prompts_take_turns() -> None:
    hall = Hall(endless(), keep_prefixes=False, prefill_chunk=16)
    hall.submit(max_tokens=900)
    hall.steps(8)
    hall.speaker.model.forget()
    for token in (65, 66, 67):
        hall.submit([token] * 200, max_tokens=2)
    while hall.waiting:
        hall.step()
    pieces = [chr(rows[0][0]) for rows in hall.speaker.model.rows if len(rows[0]) > 1]
    assert "".join(pieces).startswith("ABCABCABCABCABC")


@pytest.mark.parametrize("agents", [1, 2])
def test_short_prompts_are_answered_while_long_ones_are_run(agents: int) -> None:
    hall = Hall(endless())
    long = [hall.submit([65 + i] * 9000, max_tokens=3) for i in range(agents)]
    hall.steps(agents + 1)
    short = [hall.submit([75 + i] * 40, max_tokens=5) for i in range(agents)]
    hall.speaker.model.forget()
    while not all(hall.texts[handle] for handle in short):
        hall.step()
    pieces = [row for rows in hall.speaker.model.rows for row in rows if row[0] < 65 + agents]
    assert sum(map(len, pieces)) < 20  # next to nothing of the long ones before that
    while not all(handle.closed for handle in short):
        hall.step()
    assert not any(hall.texts[handle] for handle in long)
    assert hall.finish() == [letters(3, 8999)] * agents + [letters(5, 39)] * agents


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_short_prompt_does_not_wait_for_a_long_one_that_begins_like_it(recurrent: bool) -> None:
    caches = {"make_cache": lambda: [ArraysCache(1)]} if recurrent else {}
    hall = Hall(endless(**caches), prefill_chunk=128)
    long = hall.submit([65] * 1000, max_tokens=3)
    hall.steps(2)
    short = hall.submit([65] * 60 + [66] * 20, max_tokens=3)
    hall.steps(3)
    assert hall.texts[short] and long.prefilled < 999
    assert short.usage.cached_tokens == (0 if recurrent else 60)
    assert hall.finish() == [letters(3, 999), letters(3, 79)]


def test_tokens_that_a_prefix_gives_or_a_fork_shares_do_not_count_as_generated() -> None:
    hall = Hall(endless())
    hall.submit([65] * 300, max_tokens=4)
    hall.finish()
    before = hall.stats
    given = [ord(letter) for letter in letters(20, 300)]
    first = hall.submit([65] * 300, prefix=given, max_tokens=30)
    hall.steps(1)
    hall.fork(first, 2)
    hall.finish()
    prompts = hall.stats.prompt_tokens - before.prompt_tokens
    assert prompts == 3 * 320
    assert 0 < hall.stats.cached_tokens - before.cached_tokens <= prompts
    assert hall.stats.completion_tokens - before.completion_tokens <= 3 * 10


def test_rows_that_begin_with_much_of_the_prefix_cache_begin_a_few_at_a_time() -> None:
    hall = Hall(endless(), prefill_chunk=16)
    hall.submit([65] * 1500, max_tokens=2)
    hall.finish()
    running = hall.submit(max_tokens=100)
    hall.steps(3)
    rows = [hall.submit([65] * 1500, max_tokens=90) for _ in range(12)]
    while hall.waiting:
        begun = sum(bool(handle.cached) for handle in rows)
        assert tokens_by_step(hall, [running]) == [1]
        assert sum(bool(handle.cached) for handle in rows) <= begun + 2
    assert hall.finish()[1:] == [letters(100), *[letters(90, 1499)] * 12]
    assert all(handle.usage.cached_tokens > 1400 for handle in rows)


@pytest.mark.parametrize("run", [3, 40, 300])
def test_forced_runs_hold_the_others_back_by_one_step_at_most(run: int) -> None:
    hall = Hall(endless(), keep_prefixes=False)
    plain = [hall.submit(max_tokens=100) for _ in range(2)]
    hall.steps(4)
    pattern = Regex(f"([ab]x{{{run}}}){{3}}")
    for _ in range(2):
        hall.submit(filters=pattern, max_tokens=2000)
    empty = 0
    while not any(handle.closed for handle in plain):
        given = tokens_by_step(hall, plain)
        empty = 0 if all(given) else empty + 1
        assert empty <= 1
    texts = hall.finish()
    assert texts[2] == texts[3] == ("a" + "x" * run) * 3


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_long_way_back_is_run_again_between_the_steps_of_the_others(recurrent: bool) -> None:
    caches = {"make_cache": lambda: [ArraysCache(1)]} if recurrent else {}
    hall = Hall(endless(**caches), keep_prefixes=False, prefill_chunk=16)
    far = hall.submit(max_tokens=600)
    hall.steps(500)
    other = hall.submit(max_tokens=300)
    hall.steps(9)
    hall.speaker.model.forget()
    hall.rewind(far, 400)
    for _ in range(20):
        assert tokens_by_step(hall, [other]) == [1]
        assert hall.tokens_run <= 34
        hall.speaker.model.forget()
    hall.finish()
    assert hall.texts[other] == letters(300)


def test_with_fewer_bytes_for_all_rows_take_turns_and_say_the_same() -> None:
    hall = Hall(endless(), max_bytes=100 * STEP)
    for i in range(6):
        hall.submit([63 + i] * 200, max_tokens=60)
    hall.steps(12)
    assert hall.scheduler.stats().running > 3
    plan = hall.speaker.lm.memory
    for caches in (7, 5, 12):
        hall.scheduler.follow(plan.with_caches(caches * STEP))
        hall.steps(10)
        stats = hall.scheduler.stats()
        assert stats.kv_bytes + stats.cache_bytes <= stats.byte_limit == caches * STEP
    assert hall.finish() == [letters(60, 199)] * 6


def test_a_row_that_was_accepted_gets_to_its_end_alone_with_fewer_bytes_for_new_ones() -> None:
    hall = Hall(endless(), max_bytes=100 * STEP)
    large = hall.submit([63] * 900, max_tokens=400)
    small = hall.submit(max_tokens=20)
    hall.steps(3)
    hall.scheduler.follow(hall.speaker.lm.memory.with_caches(2 * STEP))
    with pytest.raises(CapacityError, match=f"max_bytes={2 * STEP:,}"):
        hall.submit([63] * 900)
    hall.finish()
    assert hall.texts[large] == letters(400, 899) and hall.texts[small] == letters(20)
    hall.submit(max_tokens=None)  # the promise was not made to this one
    hall.finish()
    assert [type(error) for error in hall.errors.values()] == [CapacityError]


def test_prefixes_beyond_a_new_limit_go_at_once_and_a_larger_one_lets_more_stay() -> None:
    hall = Hall(endless(), max_bytes=20 * STEP)
    plan = hall.speaker.lm.memory

    def held() -> int:
        for i in range(8):
            hall.submit([63 + i] * 500, max_tokens=2)
            hall.finish()
        return hall.scheduler.stats().cache_bytes

    before = held()
    hall.scheduler.follow(plan.with_caches(before // 2))
    assert 0 < hall.scheduler.stats().cache_bytes <= before // 2
    hall.scheduler.follow(plan.with_caches(20 * STEP))
    assert held() == before
