"""What caches and passes take: never more than was estimated, and prompts go in pieces that fit."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from mlxgen.engine import runtime
from mlxgen.engine.kv.footprint import Activations, Measures
from mlxgen.engine.kv.kv import KV
from mlxgen.engine.kv.runner import Runner
from mlxgen.errors import CapacityError
from mlxgen.loading.memory import MemoryPlan
from tests.fakes.architectures import cache_kinds
from tests.fakes.speaking import Hall, Speaker, endless

ROOM = 20_000
COSTLY = Activations(per_token=100, per_score=1, per_held=0)


@pytest.mark.parametrize("kind", cache_kinds())
def test_no_estimate_is_below_what_caches_and_passes_take(kind: str) -> None:
    model, make = cache_kinds()[kind]()
    heads = {"num_attention_heads": 2}
    measures = Measures.of(model, make, heads)
    for pieces in ([600], [16, 32, 64, 128, 128, 128, *[1] * 20], [150, *[1] * 120]):
        kv = KV(Runner(model, make))
        for count in pieces:
            kv.run([1] * count)
            assert kv.nbytes <= measures.footprint.alone(kv.length), (pieces, kv.length)
    if kind in ("concatenating", "chunked"):
        return
    for tokens, held in ((256, 0), (256, 768), (32, 1024)):
        kv = KV(Runner(model, make))
        if held:
            kv.run([0] * held, wanted=0)
            kv.wait()
        gc.collect()
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        kv.run([0] * tokens, wanted=0)
        kv.wait()
        taken = mx.get_peak_memory() - max(before, mx.get_active_memory())
        assert taken <= measures.activations.nbytes(tokens, held), (tokens, held)


def tight(activations: Activations) -> Speaker:
    """A model whose passes take so much, on a device with little room for them."""
    speaker = endless()
    speaker.lm.runtime._measures = replace(speaker.lm.runtime._measures, activations=activations)
    speaker.lm.runtime.memory = MemoryPlan(
        device=1 << 20, weights=0, caches=(1 << 20) - ROOM, activations=ROOM, reserve=0
    )
    return speaker


def check_pieces(speaker: Speaker) -> None:
    """All of a prompt of 600 tokens was run, in pieces that fit."""
    pieces = [len(tokens) for tokens in speaker.model.fed if len(tokens) > 1]
    assert sum(pieces) >= 599
    assert all(COSTLY.nbytes(n, sum(pieces[:i])) <= ROOM for i, n in enumerate(pieces))


def test_pieces_shrink_where_larger_ones_would_not_fit() -> None:
    hall = Hall(tight(COSTLY))
    hall.submit([63] * 600, max_tokens=3)
    hall.finish()
    check_pieces(hall.speaker)
    hall.speaker.model.forget()
    hall.speaker.lm.prefix_cache.clear()
    hall.speaker.lm.generate([63] * 600, max_tokens=3)
    check_pieces(hall.speaker)
    draft, speaker = tight(COSTLY), tight(Activations(1, 0, 0))
    draft.model.forget()
    speaker.lm.generate([63] * 600, max_tokens=3, draft=draft.lm)
    check_pieces(draft)


def test_a_prompt_that_cannot_fit_in_any_piece_is_refused_before_anything_runs() -> None:
    speaker = tight(Activations(per_token=0, per_score=10, per_held=0))
    hall = Hall(speaker)
    with pytest.raises(CapacityError):
        hall.submit([63] * 600)
    ways: list[Any] = [hall.submit, speaker.lm.stream, lambda p: list(speaker.lm.batch([p]))]
    for way in ways:
        with pytest.raises(CapacityError):
            way([63] * 100_000)
    assert speaker.model.fed == []
    handle = hall.submit([63] * 60, max_tokens=3)
    hall.finish()
    assert handle not in hall.errors


def test_a_plan_counts_what_a_model_that_drafts_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "memory_limit", lambda: (64 << 30, "the device has"))
    speaker, draft = endless(), endless()
    for each, per_token in ((speaker, 100_000), (draft, 150_000)):
        each.lm.runtime._measures = replace(
            each.lm.runtime._measures,
            activations=Activations(per_token=per_token, per_score=0, per_held=1),
            footprint=replace(each.lm.runtime.footprint, weights=8 << 30, growing=1024),
        )
    speaker.lm.draft = draft.lm
    plan = speaker.lm.memory
    assert plan.weights == 16 << 30
    assert plan.activations == 2048 * 150_000 + plan.caches // 2048
