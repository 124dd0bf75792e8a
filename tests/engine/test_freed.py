"""Nothing keeps what nobody holds: neither a model and its vocabulary nor the KV of a stream."""

from __future__ import annotations

import gc
import time
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


@pytest.mark.parametrize("rest", [0, 30])
def test_the_cache_of_a_stream_that_is_dropped_goes_at_once(rest: int) -> None:
    tokenizer = byte_level_tokenizer()
    lm = LanguageModel(tiny_model(tiny_config(len(tokenizer))), tokenizer)
    lm.prefix_cache.clear()
    gc.collect()
    gc.disable()
    try:
        before = mx.get_active_memory()
        stream = lm.stream([5, 6, 7] * 200, max_tokens=40, ignore_eos=True)
        for _ in range(10 + rest):
            next(stream)
        held = mx.get_active_memory() - before
        del stream
        lm.prefix_cache.clear()
        for _ in range(100):  # a busy machine frees late what a pass under way holds
            mx.synchronize()
            if mx.get_active_memory() - before < held / 4:
                return
            time.sleep(0.02)
        raise AssertionError(f"{mx.get_active_memory() - before} bytes, of {held}")
    finally:
        gc.enable()


@pytest.mark.parametrize("draft", ["off", "auto", "model"])
@pytest.mark.parametrize("use", USES)
def test_a_request_that_has_ended_is_freed_without_a_collection(use: str, draft: str) -> None:
    lm = mlxgen.load()
    options = {**USES[use], "draft": lm if draft == "model" else draft, "max_tokens": 6}
    scheduler = Scheduler(lm.runtime)
    gc.collect()
    gc.disable()
    try:
        held: list[ref[Any]] = []
        for _ in range(2):
            handle = scheduler.submit(lm.runtime.prepare("so sad", Options.of(options)))
            devices = [vars(each).get("_device") for each in handle.drafts.drafters]
            parts: list[Any] = [handle, handle.request, *handle.drafts.drafters, *devices]
            held += [ref(part) for part in parts if part is not None]
            del handle, devices, parts
        while scheduler.busy:
            scheduler.step()
        assert [each() for each in held] == [None] * len(held)
        held = [ref(each) for each in (scheduler, scheduler._loop, scheduler._loop.runner)]
        del scheduler
        assert [each() for each in held] == [None] * len(held)
    finally:
        gc.enable()
