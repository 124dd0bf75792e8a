"""Prompts that go through the model together: each must come out as if it had been alone."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache

from mlxgen.engine.kv import PREFILL_STEP
from mlxgen.engine.kv.alone import Alone
from mlxgen.engine.kv.held import stacked
from mlxgen.engine.kv.padded import longest_padded, run_padded
from tests.fakes.architectures import SIDE_BY_SIDE, VOCAB, cache_kinds
from tests.fakes.speaking import Hall, endless, letters

from .test_slots import alone, same

ROOM = {**dict.fromkeys(SIDE_BY_SIDE, PREFILL_STEP), "rotating": 15, "sliding window": 11}


@pytest.mark.parametrize("kind", list(cache_kinds()))
def test_which_caches_take_padding_and_how_much(kind: str) -> None:
    _, make = cache_kinds()[kind]()
    assert longest_padded(make) == ROOM.get(kind, 0)


def test_a_window_that_keeps_its_beginning_takes_none() -> None:
    assert longest_padded(lambda: [KVCache(), RotatingKVCache(16, keep=4)]) == 0


@pytest.mark.parametrize("kind", list(ROOM))
def test_prompts_of_different_lengths_go_on_as_they_would_alone(kind: str) -> None:
    model, make = cache_kinds()[kind]()
    prompts = [
        [1, 2, 3, 4, 5, 6, 7],
        [8],
        [i % VOCAB for i in range(min(128, longest_padded(make)))],
    ]
    kvs = [Alone(make) for _ in prompts]
    run_padded(model, make, stacked(prompts), [len(prompt) for prompt in prompts], kvs)
    for prompt, kv in zip(prompts, kvs, strict=True):
        assert kv.length == len(prompt)
        for token in (9, 10, 11):
            prompt.append(token)
            logits = kv.forward(model, mx.array([[token]]))
            same(logits[0, -1], alone(model, make, prompt))


def shapes(hall: Hall) -> list[tuple[int, int]]:
    """Rows and tokens of the passes with more than one token."""
    passes = hall.speaker.model.rows
    return sorted((len(rows), len(rows[0])) for rows in passes if len(rows[0]) > 1)


def test_short_prompts_share_a_pass_and_long_ones_do_not() -> None:
    hall = Hall(endless(), keep_prefixes=False)
    for length in (6, 7, 8, 300):
        hall.submit([63] * length, max_tokens=3)
    assert hall.finish() == [letters(3, n - 1) for n in (6, 7, 8, 300)]
    assert shapes(hall) == [(1, 299), (3, 7)]  # the last tokens go with the others


def test_short_prompts_that_come_while_others_run_share_a_pass() -> None:
    hall = Hall(endless(), keep_prefixes=False, prefill_chunk=64)
    hall.submit(max_tokens=40)
    hall.steps(8)
    for length in (4, 5, 5):
        hall.submit([63] * length, max_tokens=3)
    assert hall.finish() == [letters(40), *(letters(3, n - 1) for n in (4, 5, 5))]
    assert shapes(hall) == [(3, 4)]
