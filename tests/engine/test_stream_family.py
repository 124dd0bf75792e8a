"""A stream and its forks: those that are pulled in turn share their passes, and nothing else."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from mlx_lm.models.cache import ArraysCache

import mlxgen
from mlxgen import LanguageModel
from mlxgen.tokens import Token
from tests.effort import tries
from tests.engine.drafts.test_exactness import CACHES, OPTIONS, PROMPT, SHORT, babbler
from tests.fakes.architectures import KINDS, of_kind
from tests.fakes.failing import HOWS, How, Unread, fail
from tests.fakes.speaking import PROMPT as ASKED
from tests.fakes.speaking import endless, letters

FORKED = (*SHORT, "filter that forces", "stops", "log-probabilities", "repetitions")


def pulled_in_turn(streams: list[mlxgen.Stream]) -> None:
    """Run all of them to their ends, a token of each at a time."""
    left = list(streams)
    while left:
        left = [stream for stream in left if next(stream, None) is not None]


def seen(chunk: mlxgen.Chunk | None) -> Any:
    """What a reader sees of a chunk; whether it was drafted depends on the time of passes."""
    return chunk and (chunk.index, chunk.token, chunk.text, chunk.retract, chunk.finish_reason)


def told(lm: LanguageModel, prompt: list[Token], number: int, **options: Any) -> list[Any]:
    """What becomes of a family in which anything may happen, by the same dice for every model."""
    dice = random.Random(number)
    streams = [lm.stream(prompt, **options)]
    said: list[Any] = []
    for _ in range(40):
        stream, what = dice.choice(streams), dice.random()
        if what < 0.55:
            for _ in range(dice.randrange(1, 9)):
                said += [seen(next(each, None)) for each in streams]
        elif what < 0.7:
            said += [seen(next(stream, None)) for _ in range(dice.randrange(1, 6))]
        elif what < 0.8:
            stream.rewind(dice.randrange(len(stream.tokens) + 1))
        elif what < 0.85 and len(streams) > 1:
            streams.remove(stream)
            stream.close()
        elif what < 0.88 and len(streams) > 1:
            streams.remove(stream)
        elif what < 0.91 and options.keys() <= {"max_tokens", "seed", "temperature", "draft"}:
            if stream.finish_reason is None:
                with contextlib.suppress(mlxgen.StateError):  # the text ends before the last one
                    stream.append([prompt[dice.randrange(len(prompt))] for _ in range(5)])
        elif len(streams) < 6:
            streams += stream.fork(dice.choice([1, 1, 3]))
    pulled_in_turn(streams)
    return [*said, *[(each.text, each.tokens, each.finish_reason) for each in streams]]


def in_both_ways(make: Callable[[], LanguageModel], number: int, **options: Any) -> list[Any]:
    """What is told with shared passes, and without."""
    said = []
    for batches in (True, False):
        lm = make()
        lm.runtime.batches = lm.runtime.batches and batches
        said.append(told(lm, [token % 96 for token in PROMPT], number, **options))
    return said


@pytest.mark.parametrize("seed", range(tries(60)))
@pytest.mark.parametrize("kind", CACHES)
def test_a_family_says_what_each_of_it_says_alone(seed: int, kind: str) -> None:
    options: dict[str, Any] = {"max_tokens": 60, "seed": seed, "temperature": seed % 2}
    options |= OPTIONS[FORKED[seed % len(FORKED)]]
    options["draft"] = ("off", "ngram")[seed // 2 % 2]
    together, alone = in_both_ways(lambda: babbler(make_cache=CACHES[kind]).lm, seed, **options)
    assert together == alone


@pytest.mark.parametrize("seed", range(tries(8)))
@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_with_every_kind_of_cache(kind: str, seed: int) -> None:
    make = partial(of_kind, kind, draft="off")
    together, alone = in_both_ways(make, seed, max_tokens=40, seed=seed, temperature=0.8)
    assert together == alone


@pytest.mark.parametrize("recurrent", [False, True])
def test_those_that_are_pulled_in_turn_share_their_passes(recurrent: bool) -> None:
    speaker = endless(**({"make_cache": lambda: [ArraysCache(1)]} if recurrent else {}))
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


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("recurrent", [False, True])
def test_one_with_which_the_model_fails_fails_alone(
    how: How, recurrent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaker = endless(**({"make_cache": lambda: [ArraysCache(1)]} if recurrent else {}))
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
