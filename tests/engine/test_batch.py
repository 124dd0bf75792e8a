"""Many prompts in one call, and the troubles of one that are none of the others'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mlxgen
from mlxgen import (
    Choice,
    DeadEndError,
    GrammarError,
    HookError,
    ModelError,
    OptionError,
    PostSamplingResult,
    PromptError,
    Regex,
)
from mlxgen.engine.batch import Batch
from mlxgen.engine.limits import Limits
from tests.engine.kit import options_for
from tests.fakes.speaking import PROMPT, Hall, Speaker, endless, letters, reciter

SUMS = ["1 + 1 =", "The color of the sky", "def add(a, b):", "Hello", "x"]


def drain(batch: Batch) -> list[Exception]:
    """Run to the end; the errors that came out of ``next`` on the way."""
    errors: list[Exception] = []
    while len(errors) < 20:
        try:
            next(batch)
        except StopIteration:
            return errors
        except Exception as error:
            errors.append(error)
    raise AssertionError("the same error again and again") from errors[-1]


def texts(batch: Batch) -> list[str | None]:
    drain(batch)
    return [result.text if result is not None else None for result in batch.results]


# ---- many prompts


@pytest.mark.parametrize("max_batch", [1, 2, 32])
def test_every_prompt_gives_what_it_gives_alone_with_its_options(max_batch: int) -> None:
    lm = mlxgen.load()
    common: Any = {"max_tokens": 16, "seed": 3}
    each: Any = [
        *options_for("batch").values(),
        {"filters": [Regex("ab[a-c]*")], "prefix": lm.vocabulary.encode("ab")},
    ]
    prompts = [*SUMS, "y", "z", "z"]
    seen: dict[int, list[mlxgen.Chunk]] = {}
    with lm.batch(prompts, each=each, limits=Limits(max_batch=max_batch), **common) as batch:
        for index, chunk in batch:
            seen.setdefault(index, []).append(chunk)
    for index, (prompt, result) in enumerate(zip(prompts, batch.run(), strict=True)):
        alone = lm.generate(prompt, **{**common, **each[index]})
        assert (result.text, result.tokens) == (alone.text, alone.tokens)
        assert (result.finish_reason, result.stop) == (alone.finish_reason, alone.stop)
        assert result.usage.completion_tokens == alone.usage.completion_tokens
        assert tuple(seen[index]) == result.chunks


def test_a_list_is_checked_whole_before_anything_runs() -> None:
    speaker = reciter(list("abc"))
    bad: Any = Regex("(")
    refused: list[tuple[Any, dict[str, Any], str]] = [
        ([PROMPT] * 3, {"each": [{}]}, "each"),
        ([PROMPT], {"each": [{}, {}]}, "each"),
        ([PROMPT], {"each": {"seed": 1}}, "each"),
        ([PROMPT], {"each": ["seed"]}, "each"),
        ([PROMPT], {"each": 5}, "each"),
        ([PROMPT], {"each": [{"temprature": 1.0}]}, "temprature"),
        ([PROMPT] * 2, {"close_json": True, "each": [{"filters": Regex("a")}, {}]}, "close_json"),
        ([], {"close_json": 5}, "close_json"),
        ([PROMPT], {"limits": 3}, "limits"),
        *((wrong, {}, "prompts") for wrong in ("abc", b"abc", 5, {"role": "user"})),
    ]
    for prompts, options, field in refused:
        with pytest.raises(OptionError) as error:
            speaker.lm.batch(prompts, **options)
        assert error.value.field == field
    for prompts, options, kind in (
        ([PROMPT, PROMPT, []], {}, PromptError),
        ([PROMPT] * 3, {"each": [{}, {}, {"filters": bad}]}, GrammarError),
        ([PROMPT] * 3, {"each": [{}, {}, {"top_p": 5}]}, OptionError),
    ):
        with pytest.raises(kind) as caught:
            speaker.lm.batch(prompts, **options)
        assert caught.value.__notes__ == ["in prompts[2]"]
    with pytest.raises(OptionError, match="filters"):
        speaker.lm.batch([PROMPT] * 2, filters=Fussy())  # which is for one prompt only
    assert speaker.model.passes == 0
    for nothing in ([], iter([])):  # type: ignore[var-annotated]
        batch = speaker.lm.batch(nothing)
        assert list(batch) == [] and batch.results == [] and not batch.busy


def test_of_a_generator_a_few_are_taken_ahead_and_an_error_is_its_prompts_own() -> None:
    speaker = reciter(list("abc"))
    taken: list[int] = []

    def prompts() -> Iterator[list[int]]:
        for index in range(60):
            taken.append(index)
            yield [] if index == 30 else PROMPT

    batch = speaker.lm.batch(prompts(), limits=Limits(max_batch=2))
    assert taken == []
    next(batch)
    assert len(taken) <= 12
    (error,) = drain(batch)
    assert isinstance(error, PromptError) and error.__notes__ == ["in prompts[30]"]
    assert list(batch.errors) == [30]
    said = [result and result.text for result in batch.results]
    assert said == [None if index == 30 else "abc" for index in range(60)]
    assert batch.done == 60 and not batch.busy


def test_a_queue_of_any_length_loses_no_prompt() -> None:
    for max_queue in (0, 1, 5):
        limits = Limits(max_batch=2, max_queue=max_queue)
        batch = reciter(list("abc")).lm.batch([PROMPT] * 30, limits=limits)
        assert texts(batch) == ["abc"] * 30


def test_progress_is_shown_on_standard_error_only(capfd: pytest.CaptureFixture[str]) -> None:
    speaker = reciter(list("abc"))
    assert texts(speaker.lm.batch([PROMPT] * 3, progress=True)) == ["abc"] * 3
    with speaker.lm.batch(iter([PROMPT] * 3), progress=True) as batch:
        next(batch)
    out, err = capfd.readouterr()
    assert out == ""
    assert "3/3" in err


# ---- errors stay in their row


class Fussy:
    """A filter that allows the letters in turn, or "!", and raises where a test wants it to."""

    def __init__(self, *, fills: int = 99, advances: int = 99) -> None:
        self.position, self.fills, self.advances = 0, fills, advances

    def fill(self, row: np.ndarray[Any, Any]) -> bool:
        if self.position == self.fills:
            raise ZeroDivisionError("no row today")
        row[:] = 0
        for token in (97 + self.position, 33):
            row[token // 32] |= np.int32(1) << (token % 32)
        return True

    def advance(self, token: int) -> None:
        if self.position == self.advances:
            raise ZeroDivisionError("not this one")
        self.position += 1

    def can_end(self) -> bool:
        return self.position == 5

    def reset(self) -> None:
        self.position = 0


def failing(result: PostSamplingResult) -> None:
    if result.position == 2:
        raise ZeroDivisionError("oops")


def going_too_far(result: PostSamplingResult) -> None:
    result.rewind = 3 if result.position == 2 else 0


TROUBLES: list[tuple[Callable[[], dict[str, Any]], type[Exception], int]] = [
    (lambda: {"hooks": failing}, HookError, 2),
    (lambda: {"hooks": going_too_far}, mlxgen.RewindError, 2),
    (lambda: {"filters": [Choice(["abc"]), Choice(["abd"])]}, DeadEndError, 2),
    (lambda: {"filters": [Regex("ab[0-9]"), Regex("ab[x-z]")]}, DeadEndError, 2),
    (lambda: {"filters": Fussy(fills=0)}, Exception, 0),
    (lambda: {"filters": Fussy(fills=1)}, Exception, 1),
    (lambda: {"filters": Fussy(advances=0)}, Exception, 0),
    (lambda: {"filters": Fussy(advances=3)}, Exception, 3),
]


@pytest.mark.parametrize("recurrent", [False, True])
def test_what_goes_wrong_in_one_row_leaves_the_others_alone(recurrent: bool) -> None:
    lm = endless(recurrent=recurrent).lm
    for number, (options, kind, said) in enumerate(TROUBLES):
        for rows in (1, 4):
            place = number % rows
            each: list[Any] = [options() if index == place else {} for index in range(rows)]
            batch = lm.batch([PROMPT] * rows, each=each, max_tokens=9)
            told = dict.fromkeys(range(rows), "")
            errors: list[Exception] = []
            while True:
                try:
                    index, chunk = next(batch)
                    told[index] += chunk.text
                except StopIteration:
                    break
                except kind as error:
                    errors.append(error)
            assert batch.errors == {place: errors[0]} and len(errors) == 1
            assert errors[0].__notes__ == [f"in prompts[{place}]"]
            assert told.pop(place) == letters(said)
            assert set(told.values()) <= {letters(9)}
            assert batch.stats.kv_bytes == 0


def test_logits_that_are_no_numbers_are_an_error_of_their_row() -> None:
    def say(self: Speaker, generated: list[int]) -> dict[int, float] | list[int]:
        if generated[:2] == [120, 120]:
            return {97: float("nan")}
        return [97 + len(generated) % 26]

    hall = Hall(Speaker([], say))
    hall.submit(max_tokens=9)
    ill = hall.submit(logit_bias={120: 100.0}, max_tokens=9)
    hall.submit(max_tokens=9)
    assert hall.finish() == [letters(9), "xx", letters(9)]
    assert isinstance(hall.errors[ill], ModelError)


def test_a_batch_with_few_bytes_leaves_the_limit_of_the_models_prefix_cache_as_it_is() -> None:
    lm = endless().lm
    lm.prefix_cache.max_bytes = 1 << 20
    for _ in lm.batch([[65] * 40], max_tokens=2, limits=Limits(max_bytes=1 << 13)):
        pass
    assert lm.prefix_cache.max_bytes == 1 << 20
    for _ in lm.batch([[66] * 40], max_tokens=2):
        pass
    assert lm.prefix_cache.match([66] * 40) == 39
