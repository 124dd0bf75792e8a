"""Nothing keeps what nobody holds: neither a model and its vocabulary nor the KV of a stream."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import mlx.core as mx
import pytest

import mlxgen
from mlxgen import LanguageModel
from mlxgen.engine.options import Options
from mlxgen.engine.scheduling.scheduler import Scheduler
from tests.fakes import byte_level_tokenizer
from tests.fakes.checkpoints import tiny_config, tiny_model
from tests.fakes.controllers import Recited, anything
from tests.fakes.speaking import PROMPT, Speaker, endless

USES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grammar": {"filters": [mlxgen.Regex("[a-z ]*")]},
    "schema": {"filters": [mlxgen.JsonSchema({"type": "object"})], "close_json": True},
    "choice": {"filters": [mlxgen.Choice(["the", "so"])]},
    "drafts": {"draft": "ngram"},
    "bans and stops": {"banned": ["the"], "stop": ["x"]},
    "healing": {"heal": True},
}


@pytest.mark.parametrize("use", USES)
def test_a_model_goes_with_its_vocabulary(use: str) -> None:
    tokenizer = byte_level_tokenizer()
    lm = LanguageModel(tiny_model(tiny_config(len(tokenizer))), tokenizer)
    lm.generate("so sad", max_tokens=3, **USES[use])
    lm.generate([{"role": "user", "content": "so"}], max_tokens=2)
    held = [ref(each) for each in (lm, lm.model, lm.vocabulary, lm.tokenizer)]
    del lm, tokenizer
    gc.collect()
    assert [each() for each in held] == [None] * 4


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is still there is in use, or in a circle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Given:
    """A hook of a generation, and its controller: who holds one of them holds the generation."""

    def __call__(self, result: mlxgen.PostSamplingResult) -> None:
        pass


def pushed(speaker: Speaker, given: Given) -> mlxgen.Session:
    session = mlxgen.Session(speaker.tokenizer, hooks=given, filters=mlxgen.Regex("[a-z]*"))
    for letter in b"abc":
        session.push_token(letter)
    return session


def forked(speaker: Speaker, given: Given) -> mlxgen.Stream:
    stream = speaker.lm.stream(PROMPT, hooks=given)
    next(stream)
    for twin in stream.fork(2):
        next(twin)
    return stream


class Holding(Recited):
    held: Any = None


def branched(speaker: Speaker, given: Given) -> mlxgen.Control[Any]:
    controller = Holding([anything(speaker)] * 2, [anything(speaker)])
    controller.held = given
    return speaker.lm.control(PROMPT, controller)


def programmed(speaker: Speaker, given: Given) -> mlxgen.Control[Any]:
    async def program(g: mlxgen.Guide) -> Given:
        if (await g.fork(2)).index:
            await g.until("never")
        await g.gen(max_tokens=50)
        return given

    return speaker.lm.control(PROMPT, mlxgen.Program(program))


GENERATIONS: dict[str, Callable[[Speaker, Given], Any]] = {
    "stream": lambda speaker, given: speaker.lm.stream(PROMPT, hooks=given),
    "fork": forked,
    "batch": lambda speaker, given: speaker.lm.batch([PROMPT] * 3, hooks=given, max_tokens=5),
    "control": branched,
    "program": programmed,
    "session": pushed,
}


@pytest.mark.parametrize("taken", [1, 4, 40])
def test_a_generation_that_is_over_goes_at_once(taken: int, uncollected: None) -> None:
    for kind, begin in GENERATIONS.items():
        for closes in (True, False):  # but the coroutine of a program has the guide that has it
            given = Given()
            generation, held = begin(endless(), given), ref(given)
            if not isinstance(generation, mlxgen.Session):
                for _ in range(taken):
                    next(generation, None)
                if closes or kind == "program":
                    generation.close()
            elif closes:
                generation.finish()
            del generation, given
            assert held() is None, (kind, closes)


@pytest.mark.parametrize("draft", ["off", "auto", "model"])
@pytest.mark.parametrize("use", USES)
def test_a_request_that_has_ended_goes_at_once(use: str, draft: str, uncollected: None) -> None:
    lm = mlxgen.load()
    options = {**USES[use], "draft": lm if draft == "model" else draft, "max_tokens": 6}
    scheduler = Scheduler(lm.runtime)
    held: list[ref[Any]] = []
    for _ in range(2):
        handle = scheduler.submit(lm.runtime.prepare("so sad", Options.of(options)))
        devices = [vars(each).get("_device") for each in handle.drafts.drafters]
        parts: list[Any] = [handle, handle.request, *handle.drafts.drafters, *devices]
        held += [ref(part) for part in parts if part is not None]
        del handle, devices, parts
    cancelled = scheduler.submit(lm.runtime.prepare("so sad", Options.of(options)))
    for _ in range(4):
        scheduler.step()
    gone = ref(cancelled)
    scheduler.cancel(cancelled)
    del cancelled
    assert gone() is None
    while scheduler.busy:
        scheduler.step()
    assert [each() for each in held] == [None] * len(held)
    held = [ref(each) for each in (scheduler, scheduler._loop, scheduler._loop.runner)]
    del scheduler
    assert [each() for each in held] == [None] * len(held)


@pytest.mark.parametrize("rest", [0, 30])
def test_the_cache_of_a_stream_that_is_dropped_goes_at_once(rest: int, uncollected: None) -> None:
    tokenizer = byte_level_tokenizer()
    lm = LanguageModel(tiny_model(tiny_config(len(tokenizer))), tokenizer)
    before = mx.get_active_memory()
    stream = lm.stream([5, 6, 7] * 200, max_tokens=40, ignore_eos=True)
    for _ in range(10 + rest):
        next(stream)
    held = mx.get_active_memory() - before
    del stream
    until = time.monotonic() + 30  # what was submitted is held until it is computed
    while mx.get_active_memory() - before >= held / 4:
        assert time.monotonic() < until
        time.sleep(0.01)
