"""Adaptive-p: draws near a probability, and an average that goes back with the text."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.sampling import Aim, DrawRow, Sampler, SamplingSettings, Want, final_distribution

from ..effort import tries
from .reference import reference, spread

SHARES = st.one_of(st.none(), st.floats(0, 1))


def fed(shares: list[float | None]) -> Aim:
    aim = Aim(0.4, 0.8)
    for share in shares:
        aim.drew(share)
        aim.advance(0)
    return aim


@given(kept=st.lists(SHARES, max_size=20), after=st.lists(SHARES, max_size=20))
@settings(max_examples=tries(200))
def test_going_back_and_forks_leave_what_was_kept(
    kept: list[float | None], after: list[float | None]
) -> None:
    aim = fed(kept)
    other = aim.fork()
    for share in after:
        aim.drew(share)
        aim.advance(0)
    assert (len(other), other.next) == (len(kept), fed(kept).next)
    aim.rewind(len(kept))
    assert (len(aim), aim.next) == (len(kept), fed(kept).next)


def test_it_aims_beyond_the_target_by_what_the_latest_tokens_miss() -> None:
    assert fed([]).next == pytest.approx(0.4)
    assert fed([0.4] * 9).next == pytest.approx(0.4)
    assert fed([0.9]).next == pytest.approx(2 * 0.4 - (0.8 * 0.4 + 0.2 * 0.9))
    assert fed([None] * 5).next == pytest.approx(0.4)  # nobody drew these
    assert fed([1.0] * 99).next == 0.0


@pytest.mark.parametrize(
    "options",
    [{}, {"min_p": 0.05}, {"top_k": 20}, {"top_p": 0.9}, {"xtc_probability": 1.0, "top_k": 30}],
    ids=str,
)
def test_tokens_near_the_target_are_preferred(options: dict[str, Any]) -> None:
    vocab, target = 400, 0.3
    logits = np.stack([spread(vocab, seed) for seed in range(12)])
    plain = SamplingSettings(temperature=0.9, xtc_threshold=0.05, **options)
    chosen = SamplingSettings(temperature=0.9, xtc_threshold=0.05, adaptive_target=0.5, **options)
    rows = [DrawRow(chosen, seed, 3, target=target) for seed in range(12)]
    want = Want(prob=True, candidates=128)
    draw = Sampler(vocab).sample(mx.array(logits), rows, want=want, exact=True)
    assert draw.share is not None and draw.prob is not None
    assert draw.candidates is not None and draw.candidate_probs is not None
    whole = np.array(final_distribution(mx.array(logits), rows))
    for i in range(12):
        before = reference(logits[i], plain, xtc="xtc_probability" in options)
        distance = np.abs(before - target) / 0.2
        weights = np.where(before > 0, np.exp(-10 * distance**2 / (1 + distance)), 0.0)
        expected, token = weights / weights.sum(), int(np.array(draw.token)[i])
        assert np.allclose(whole[i], expected, atol=1e-4)
        assert np.array(draw.share)[i] == pytest.approx(before[token], rel=1e-3)
        assert np.array(draw.prob)[i] == pytest.approx(expected[token], rel=1e-3)
        shown = np.array(draw.candidate_probs)[i]
        assert shown[0] == pytest.approx(expected.max(), rel=1e-3)
        assert (np.diff(shown) <= 1e-6).all()


def test_rows_that_aim_and_others_share_a_batch() -> None:
    vocab = 200
    logits = mx.array(np.stack([spread(vocab, seed) for seed in range(4)]))
    plain = SamplingSettings(temperature=1.0, top_k=10)
    aims = SamplingSettings(temperature=1.0, top_k=10, adaptive_target=0.2)
    rows = [
        DrawRow(aims if i % 2 else plain, i, 0, target=0.2 if i % 2 else None) for i in range(4)
    ]
    sampler = Sampler(vocab)
    together = np.array(sampler.sample(logits, rows).token)
    alone = [sampler.sample(logits[i : i + 1], rows[i : i + 1]).token.item() for i in range(4)]
    assert together.tolist() == alone
