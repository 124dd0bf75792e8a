"""Whatever is done with a stream and its forks: nobody can tell what is shared and what is drafted.

Those that are pulled in turn share their passes, and nothing else.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest

import mlxgen
from mlxgen import LanguageModel, MlxgenError
from mlxgen.tokens import Token
from tests.effort import ALL, tries
from tests.engine.drafts.test_exactness import PROMPT, babbler
from tests.engine.kit import options_for
from tests.fakes.failing import HOWS, How, Unread, fail
from tests.fakes.speaking import PROMPT as ASKED
from tests.fakes.speaking import endless, letters


@cache
def demo() -> LanguageModel:
    return mlxgen.load()


LINES = mlxgen.Regex(r"[a-zA-Z ,.!?\n0-9\[\]{}\"]*")
STREAMED = [*options_for("drafts").values(), *options_for("streams").values()]


def pulled_in_turn(streams: list[mlxgen.Stream]) -> None:
    """Run all of them to their ends, a token of each at a time."""
    left = list(streams)
    while left:
        left = [stream for stream in left if next(stream, None) is not None]


def seen(chunk: mlxgen.Chunk | None) -> Any:
    """What a reader sees of a chunk; whether it was drafted depends on the time of passes."""
    return chunk and (chunk.index, chunk.token, chunk.text, chunk.retract, chunk.finish_reason)


def told(lm: LanguageModel, prompt: Sequence[Token], number: int, options: Any) -> list[Any]:
    """What becomes of a family in which anything may happen, by the same dice for every model."""
    dice = random.Random(number)
    streams = [lm.stream(prompt, **options)]
    said: list[Any] = []
    last = list(prompt)  # what was taken back
    first = len(options.get("prefix", ()))
    for _ in range(40):
        stream, what = dice.choice(streams), dice.random()
        if what < 0.45:
            for _ in range(dice.randrange(1, 9)):
                said += [seen(next(each, None)) for each in streams]
        elif what < 0.6 or "allow_retract" in options:  # what is retracted is known earlier
            said += [seen(next(stream, None)) for _ in range(dice.randrange(1, 6))]
        elif what < 0.7:
            place = dice.randrange(first, len(stream.tokens) + 1)
            last = stream.tokens[place:] or last
            stream.rewind(to=place)
        elif what < 0.75 and len(streams) > 1:
            streams.remove(stream)
            stream.close()
        elif what < 0.78 and len(streams) > 1:
            streams.remove(stream)
        elif what < 0.88:
            try:
                stream.append(last[: dice.randrange(1, 6)])
            except MlxgenError as error:
                said.append(type(error).__name__)
        elif len(streams) < 6:
            streams += stream.fork(dice.choice([1, 1, 3]))
        said.append((stream.text, stream.tokens, stream.finish_reason))
    pulled_in_turn(streams)
    said += [(each.text, each.tokens, each.finish_reason) for each in streams]
    return [*said, *[each.usage.completion_tokens for each in streams]]


def in_all_ways(
    make: Callable[[], LanguageModel], prompt: Sequence[Token], number: int, **options: Any
) -> None:
    """What is told does not depend on shared passes and drafts."""
    expected = None
    for batches, draft in ((False, "off"), (True, "off"), (True, "ngram"), (True, "auto")):
        lm = make()
        given, lm.runtime.batches = lm.runtime.batches, lm.runtime.batches and batches
        found = told(lm, prompt, number, {"seed": number, **options, "draft": draft})
        lm.runtime.batches = given
        expected = expected or found
        assert found == expected, (batches, draft)


@pytest.mark.parametrize("number", range(tries(40)))
@pytest.mark.parametrize("recurrent", [False, True])
def test_nobody_can_tell_how_a_stream_was_run(number: int, recurrent: bool) -> None:
    options = {"max_tokens": 60, "temperature": number % 2, **STREAMED[number % len(STREAMED)]}
    in_all_ways(lambda: babbler(recurrent=recurrent).lm, PROMPT, number, **options)


@pytest.mark.parametrize("number", range(tries(32)))
def test_so_it_is_with_the_demo_model_and_its_head(number: int) -> None:
    asked = ("Once upon a time", "one two three one two three one two", "What is 2 + 3? 5")
    own = [each for each in STREAMED if not {"filters", "prefix"} & each.keys()]
    own.append({"filters": LINES, "close_json": True})
    options = {
        "max_tokens": 40 if ALL else 20,
        "temperature": number // 2 % 2,
        **own[number % len(own)],
    }
    prompt = demo().vocabulary.encode(asked[number % len(asked)])
    in_all_ways(demo, prompt, number, **options)


@pytest.mark.parametrize("recurrent", [False, True])
def test_those_that_are_pulled_in_turn_share_their_passes(recurrent: bool) -> None:
    speaker = endless(recurrent=recurrent)
    stream = speaker.lm.stream(ASKED, max_tokens=20)
    for _ in range(4):
        next(stream)
    family = [stream, *stream.fork(3)]
    assert speaker.lm.runtime.batches  # tried once
    speaker.model.forget()
    pulled_in_turn(family)
    assert [each.text for each in family] == [letters(20)] * 4
    assert speaker.model.passes < 24  # alone, each would take 16
    assert [each.usage.forward_passes for each in family][1:] <= [16] * 3


def test_one_that_is_not_pulled_is_run_ahead_by_a_token_at_most() -> None:
    stream = endless().lm.stream(ASKED, max_tokens=50)
    next(stream)
    (twin,) = stream.fork()
    for _ in range(3):
        next(stream)
        next(twin)
    passes = twin.usage.forward_passes
    for _ in range(10):
        next(stream)
    assert twin.usage.forward_passes <= passes + 1
    assert (stream.text, twin.text) == (letters(14), letters(4))
    assert "".join(chunk.text for chunk in twin) == letters(46, 4)


def test_one_that_has_much_to_run_does_not_hold_up_another() -> None:
    speaker = endless()
    stream = speaker.lm.stream(ASKED, max_tokens=300)
    next(stream)
    (twin,) = stream.fork()
    for each in (stream, twin) * 3:
        next(each)
    twin.append(list(b"a" * 100))
    assert [next(twin).text for _ in range(100)] == ["a"] * 100
    speaker.model.forget()
    next(stream)
    assert sum(len(row) for rows in speaker.model.rows for row in rows) <= 2
    assert next(twin).text == letters(1, 104)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("recurrent", [False, True])
def test_one_with_which_the_model_fails_fails_alone(
    how: How, recurrent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaker = endless(recurrent=recurrent)
    stream = speaker.lm.stream(ASKED, max_tokens=20)
    for _ in range(4):
        next(stream)
    ill, *others = [stream, *stream.fork(2)]
    pulled = [next(each).text for each in (ill, *others, ill, *others)]
    assert pulled == ["e"] * 3 + ["f"] * 3
    ill.append([120])
    fail(speaker, lambda history: 120 in history, how, Unread(monkeypatch))
    left, failed = [ill, *others], 0
    while left:
        for each in tuple(left):
            try:
                if next(each, None) is None:
                    left.remove(each)
            except mlxgen.ModelError as error:
                assert each is ill, error
                failed += 1
                left.remove(each)
    assert failed == 1
    assert [each.text for each in others] == [letters(20)] * 2
    ill.rewind(to=6)
    assert "".join(chunk.text for chunk in ill) == letters(14, 6)


def test_a_stream_that_nobody_has_any_more_gives_back_its_place() -> None:
    speaker = endless()
    stream = speaker.lm.stream(ASKED, max_tokens=50)
    next(stream)
    twins = stream.fork(3)
    for _ in range(5):
        for each in (stream, *twins):
            next(each)
    slots = stream._loop.runner.slots
    assert slots is not None and len(slots) == 4
    twins[0].close()
    del twins, each
    gc.collect()
    assert next(stream).text == "g"
    assert len(slots) == 1
    stream.close()
    assert slots.nbytes == 0
