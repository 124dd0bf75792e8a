"""What a pass over a piece of a prompt takes beside the KV, and pieces that fit."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from mlxgen.engine.kv import SMALLEST, Activations, footprint
from mlxgen.engine.kv.layers import leaves
from mlxgen.errors import CapacityError
from mlxgen.loading.memory import MemoryPlan
from tests.fakes.architectures import cache_kinds
from tests.fakes.speaking import Hall, Speaker, endless


def fill(model: Any, caches: list[Any], tokens: int) -> None:
    model(mx.zeros((1, tokens), mx.int32), cache=caches)
    mx.eval([layer.state for layer in caches if not layer.empty()])


@pytest.mark.parametrize("kind", ["plain", "quantised", "sliding window", "recurrent", "hybrid"])
def test_no_estimate_is_below_what_a_pass_takes(kind: str) -> None:
    model, make = cache_kinds()[kind]()
    once = make()
    dtype = model(mx.array([[0]]), cache=once).dtype
    activations = Activations.of_one(model, once, dtype, heads=2, experts=1)
    for tokens, held in ((256, 0), (256, 768), (32, 1024)):
        caches = make()
        if held:
            fill(model, caches, held)
        gc.collect()
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        fill(model, caches, tokens)
        kept = max(before, mx.get_active_memory())
        assert mx.get_peak_memory() - kept <= activations.nbytes(tokens, held), (tokens, held)


def test_scores_count_only_where_they_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    model, make = cache_kinds()["plain"]()
    caches = make()
    dtype = model(mx.array([[0]]), cache=caches).dtype
    monkeypatch.setattr(footprint, "_FUSED", (32,))
    with monkeypatch.context() as on_a_gpu:
        on_a_gpu.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
        assert Activations.of_one(model, caches, dtype, heads=2, experts=1).per_score == 0
        on_a_gpu.setattr(footprint, "_FUSED", (64,))
        there = Activations.of_one(model, caches, dtype, heads=2, experts=1)
        assert there.per_score == 2 * 2 * 4
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
    here = Activations.of_one(model, caches, dtype, heads=2, experts=1)
    assert here.per_score == 2 * 2 * 4  # a CPU has no kernel for it
    model, make = cache_kinds()["quantised"]()
    caches = make()
    model(mx.array([[0]]), cache=caches)
    assert any(hasattr(leaf, "bits") for leaf in leaves(caches))
    quantised = Activations.of_one(model, caches, dtype, heads=2, experts=1)
    floats, packed = 2 * 2 * 32 * 4, 2 * 2 * (32 + 2 * 4)
    assert (here.per_held, quantised.per_held) == (floats, packed + floats)


def test_a_piece_is_the_largest_power_of_two_that_fits() -> None:
    activations = Activations(per_token=1000, per_score=10, per_held=1)
    for room, held in ((10**9, 0), (10**6, 0), (10**6, 500), (5 * 10**6, 10_000)):
        most = activations.most(room, held)
        assert most == SMALLEST or activations.nbytes(most, held) <= room
        assert most == 2048 or activations.nbytes(2 * most, held) > room
    assert activations.most(0, 0) == SMALLEST


# ---- prompts


def tight(activations: Activations, room: int) -> Speaker:
    """A model whose passes take so much, on a device with so little room for them."""
    speaker = endless()
    speaker.lm.runtime._measures = replace(speaker.lm.runtime._measures, activations=activations)
    speaker.lm.runtime.memory = MemoryPlan(
        device=1 << 20, weights=0, caches=(1 << 20) - room, activations=room, reserve=0
    )
    return speaker


def lengths(speaker: Speaker) -> list[int]:
    return [len(tokens) for tokens in speaker.model.fed if len(tokens) > 1]


def test_pieces_shrink_where_larger_ones_would_not_fit() -> None:
    costly = Activations(per_token=100, per_score=1, per_held=0)
    speaker = tight(costly, 20_000)
    hall = Hall(speaker)
    hall.submit([63] * 600, max_tokens=3)
    hall.finish()
    assert lengths(speaker)
    assert all(costly.nbytes(n, 600 - n) <= 20_000 for n in lengths(speaker))

    speaker = tight(costly, 20_000)
    speaker.model.forget()
    speaker.lm.generate([63] * 600, max_tokens=3)
    pieces, held = lengths(speaker), 0
    for piece in pieces:
        assert costly.nbytes(piece, held) <= 20_000
        held += piece
    assert held >= 599
    assert pieces[0] > pieces[-2]  # there is less room as there is more to look at


def test_a_prompt_that_cannot_fit_in_any_piece_is_refused_before_anything_runs() -> None:
    speaker = tight(Activations(per_token=0, per_score=10, per_held=0), 20_000)
    hall = Hall(speaker)
    refused = pytest.raises(
        CapacityError, match=r"600 tokens needs 98,560 bytes .* 20,000 are left"
    )
    with refused:
        hall.submit([63] * 600)
    handle = hall.submit([63] * 60, max_tokens=3)
    hall.finish()
    assert handle not in hall.errors
    speaker.model.forget()
    long = [63] * 100_000
    with pytest.raises(CapacityError, match="100000 tokens needs"):
        speaker.lm.stream(long)
    with pytest.raises(CapacityError, match="100000 tokens needs"):
        list(speaker.lm.batch([long]))
    assert speaker.model.fed == []


# ---- a model that drafts


def test_a_plan_counts_what_a_model_that_drafts_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "memory_limit", lambda: (64 << 30, "the device has"))
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


def test_a_model_that_drafts_runs_no_larger_pieces_than_fit_either() -> None:
    costly = Activations(per_token=100, per_score=1, per_held=0)
    speaker, draft = tight(Activations(1, 0, 0), 20_000), endless()
    draft.lm.runtime._measures = replace(draft.lm.runtime._measures, activations=costly)
    draft.model.forget()
    speaker.lm.generate([63] * 600, max_tokens=3, draft=draft.lm)
    pieces = lengths(draft)
    assert sum(pieces) >= 599
    assert all(costly.nbytes(n, sum(pieces[:i])) <= 20_000 for i, n in enumerate(pieces))


def test_a_prompt_whose_draft_has_no_room_for_its_kv_is_refused() -> None:
    speaker, draft = endless(), endless()
    room = speaker.lm.runtime.footprint.alone(601)
    hall = Hall(speaker, max_bytes=room + 10)
    with pytest.raises(CapacityError, match="600 tokens needs"):
        hall.submit([63] * 600, draft=draft.lm, max_tokens=2)
    hall.submit([63] * 600, max_tokens=2)
