"""Speculative sampling: what comes out must be distributed as if there had been no draft."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.sampling import (
    DrawRow,
    Sampler,
    SamplingSettings,
    draw_from,
    final_distribution,
    uniform,
)
from mlxgen.sampling.draws import LANES, OUTER, XTC
from mlxgen.sampling.speculation import ACCEPT, RESIDUAL_INNER, RESIDUAL_OUTER

DRAWS = 6000
SETTINGS = {
    "plain": SamplingSettings(temperature=1.0),
    "hot": SamplingSettings(temperature=1.7),
    "nucleus": SamplingSettings(temperature=0.9, top_p=0.8),
    "ranked": SamplingSettings(temperature=0.7, top_k=5),
    "biased": SamplingSettings(temperature=1.0, logit_bias={3: 2.0}),
}


def chi_square(counts: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """The statistic over classes that are expected at least five times, the rest as one."""
    big = expected >= 5
    seen = np.append(counts[big], counts[~big].sum())
    wanted = np.append(expected[big], expected[~big].sum())
    kept = wanted > 0
    return float(((seen[kept] - wanted[kept]) ** 2 / wanted[kept]).sum()), int(kept.sum()) - 1


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("vocab", [12, 5000])
def test_tokens_are_distributed_as_without_a_draft(name: str, vocab: int) -> None:
    mx.random.seed(vocab)
    mine = mx.random.normal((1, vocab)) * 2
    theirs = mine + mx.random.normal((1, vocab))  # a draft that is roughly right
    sampler = Sampler(vocab)
    count = DRAWS if vocab < 100 else DRAWS // 6
    rows = [DrawRow(SETTINGS[name], seed=5, position=i) for i in range(count)]
    probs = final_distribution(theirs, rows[:1])
    many = mx.broadcast_to(probs, (count, vocab))
    drafted = draw_from(many, rows)
    stands, instead = sampler.verify(mx.broadcast_to(mine, (count, vocab)), rows, drafted, many)
    tokens = np.array(mx.where(stands, drafted, instead))
    expected = np.array(final_distribution(mine, rows[:1])[0], dtype=np.float64)
    assert (expected[tokens] > 0).all()
    statistic, freedom = chi_square(
        np.bincount(tokens, minlength=vocab), expected / expected.sum() * count
    )
    assert statistic < freedom + 5 * np.sqrt(2 * freedom) + 5, (statistic, freedom)


def test_a_draft_that_is_right_always_stands() -> None:
    logits = mx.random.normal((1, 40))
    rows = [DrawRow(SamplingSettings(temperature=1.0), seed=1, position=i) for i in range(200)]
    probs = mx.broadcast_to(final_distribution(logits, rows[:1]), (200, 40))
    drafted = draw_from(probs, rows)
    verified = Sampler(40).verify(mx.broadcast_to(logits, (200, 40)), rows, drafted, probs)
    assert bool(verified.stands.all())


def test_what_is_drawn_instead_is_never_more_likely_for_the_draft() -> None:
    mine, theirs = mx.random.normal((1, 30)), mx.random.normal((1, 30))
    rows = [DrawRow(SamplingSettings(temperature=1.0), seed=2, position=i) for i in range(300)]
    p, q = (final_distribution(x, rows[:1]) for x in (mine, theirs))
    drafted = draw_from(mx.broadcast_to(q, (300, 30)), rows)
    verified = Sampler(30).verify(
        mx.broadcast_to(mine, (300, 30)), rows, drafted, mx.broadcast_to(q, (300, 30))
    )
    instead = np.array(verified.instead)
    more = np.array(p[0] - q[0])
    assert (more[instead] > 0).all()


def test_masked_tokens_are_never_given_whatever_the_draft_says() -> None:
    words = np.array([0b1010], dtype=np.int32)
    rows = [
        DrawRow(SamplingSettings(temperature=1.0), seed=3, position=i, words=words)
        for i in range(100)
    ]
    logits = mx.zeros((100, 32))
    q = mx.full((100, 32), 1 / 32)
    drafted = mx.array([i % 32 for i in range(100)])
    stands, instead = Sampler(32).verify(logits, rows, drafted, q)
    tokens = set(np.array(mx.where(stands, drafted, instead)).tolist())
    assert tokens == {1, 3}


def test_the_lanes_of_a_position_are_numbers_of_their_own() -> None:
    lanes = {ACCEPT, RESIDUAL_INNER, RESIDUAL_OUTER}
    assert min(lanes) > max(OUTER, XTC) and max(lanes) < LANES
    assert len({uniform(1, 2, 3, lane) for lane in range(LANES)}) == LANES
