from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.sampling.weights import (
    exponential,
    highest,
    log_total,
    pick,
    pick_sorted,
    polynomial_exponential,
)

from .reference import is_likely, listed, spread

SIZES = [1, 96, 1000, 4096, 5024, 151_936]


def test_the_polynomial_is_exp_to_the_last_bits_of_float32() -> None:
    x = -np.concatenate([np.linspace(0, 87, 200_001), np.geomspace(1e-30, 87, 10_001)])
    x = x.astype(np.float32)
    result = np.array(polynomial_exponential(mx.array(x))).astype(np.float64)
    assert np.max(np.abs(result / np.exp(x.astype(np.float64)) - 1)) < 3e-7
    assert result[0] == 1.0


@pytest.mark.parametrize("n", [4, 8192])
def test_exponentials_of_what_is_impossible_are_zero(n: int) -> None:
    x = mx.full((1, n), -mx.inf)
    assert mx.all(exponential(x) == 0)
    assert mx.all(exponential(mx.full((1, n), -1e30)) == 0)
    assert mx.all(mx.isnan(exponential(mx.full((1, n), mx.nan))))


@pytest.mark.parametrize("n", SIZES)
def test_totals_and_maxima_are_those_of_numpy(n: int) -> None:
    logits = np.stack([spread(n, seed) for seed in range(3)])
    exact = logits.astype(np.float64)
    level = np.log(np.exp(exact - exact.max(-1, keepdims=True)).sum(-1, keepdims=True))
    level += exact.max(-1, keepdims=True)
    assert np.array_equal(np.array(highest(mx.array(logits))), logits.max(-1, keepdims=True))
    assert np.allclose(np.array(log_total(mx.array(logits))), level, rtol=0, atol=1e-5)


@pytest.mark.parametrize("n", [96, 5024])
def test_a_maximum_shows_that_a_row_holds_nan(n: int) -> None:
    for place in (0, n // 2, n - 1):
        logits = np.zeros((2, n), np.float32)
        logits[1, place] = -np.nan
        peaks = highest(mx.array(logits))
        assert peaks[0].item() == 0
        assert np.isnan(peaks[1].item())
        assert np.isnan(log_total(mx.array(logits))[1].item())


@pytest.mark.parametrize("n", [1, 5, 96, 1000, 4096, 5024])
def test_choices_follow_the_weights(n: int) -> None:
    rng = np.random.default_rng(n)
    weights = np.exp(spread(n, n).astype(np.float64))
    weights[rng.random(n) < 0.3] = 0
    weights[0] = 1.0
    draws = 20_000
    observed = np.zeros(n, dtype=np.int64)
    for _ in range(40):
        rows = mx.broadcast_to(mx.array(weights.astype(np.float32))[None], (draws // 40, n))
        uniforms = rng.random((2, draws // 40, 1)).astype(np.float32)
        index, weight, everything = pick(rows, mx.array(uniforms[0]), mx.array(uniforms[1]))
        assert mx.array_equal(weight, mx.take_along_axis(rows, index, axis=-1))
        assert np.allclose(np.array(everything), weights.sum(), rtol=1e-5)
        observed += np.bincount(np.array(index)[:, 0], minlength=n)
    assert observed[weights == 0].sum() == 0
    assert is_likely(observed, weights / weights.sum())


@pytest.mark.parametrize("n", [128, 300, 5024])
def test_choices_from_a_sorted_row_follow_the_weights(n: int) -> None:
    rng = np.random.default_rng(n)
    weights = np.sort(rng.random(n) ** 3)[::-1].astype(np.float32)
    weights[n - n // 4 :] = 0
    uniforms = rng.random((2, 20_000 // (n // 64), 1)).astype(np.float32)
    rows = mx.broadcast_to(mx.array(weights)[None], (uniforms.shape[1], n))
    index, _, everything = pick_sorted(rows, mx.array(uniforms[0]), mx.array(uniforms[1]))
    observed = np.bincount(np.array(index)[:, 0], minlength=n)
    assert observed[weights == 0].sum() == 0
    exact = weights.astype(np.float64)
    assert np.allclose(np.array(everything), exact.sum(), rtol=1e-5)
    assert is_likely(observed, exact / exact.sum())


@pytest.mark.parametrize("n", [96, 5024, 151_936])
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2.0**-24])
def test_what_weighs_nothing_is_never_chosen(n: int, uniform: float) -> None:
    number = mx.array([[uniform]])
    for place in (0, 1, n // 2, n - 1):
        weights = np.zeros((1, n), np.float32)
        weights[0, place] = 1e-30
        for choose in (pick, pick_sorted) if n <= 5024 else (pick,):
            index, weight, _ = choose(mx.array(weights), number, number)
            assert index.item() == place
            assert listed(weight)[0][0] > 0


def test_nothing_to_choose_from_weighs_nothing() -> None:
    number = mx.array([[0.5]])
    for n in (8, 5024):
        for filling in (0.0, float("nan")):
            _, weight, _ = pick(mx.full((1, n), filling), number, number)
            assert not listed(weight)[0][0] > 0


def test_a_faint_tail_is_drawn_as_often_as_it_should() -> None:
    """A third of the mass on 150,000 tokens of 2e-6 each, behind one of two thirds."""
    n = 151_936
    weights = np.full(n, 0.5 / (n - 1), dtype=np.float32)
    weights[0] = 1.0
    rng = np.random.default_rng(0)
    indexes = []
    for _ in range(20):
        uniforms = mx.array(rng.random((2, 20, 1)).astype(np.float32))
        rows = mx.broadcast_to(mx.array(weights)[None], (20, n))
        indexes += np.array(pick(rows, uniforms[0], uniforms[1])[0])[:, 0].tolist()
    tail = np.array([index for index in indexes if index])
    assert abs(len(tail) / len(indexes) - 1 / 3) < 0.1
    assert is_likely(np.bincount(tail * 8 // n, minlength=8), np.full(8, 1 / 8))
