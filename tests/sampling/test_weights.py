from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.sampling.weights import (
    exponential,
    highest,
    log_total,
    polynomial_exponential,
    total,
)

from .reference import spread

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


@pytest.mark.parametrize("n", SIZES)
def test_a_total_is_the_sum(n: int) -> None:
    weights = np.exp(np.stack([spread(n, seed) for seed in range(3)]))
    exact = weights.astype(np.float64).sum(-1, keepdims=True)
    assert np.allclose(np.array(total(mx.array(weights))), exact, rtol=1e-5)
