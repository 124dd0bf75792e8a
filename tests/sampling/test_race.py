"""Random numbers that are no state, and choices by weight: as often as they should, and the same
from nearly the same weights."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.sampling import derive_seed
from mlxgen.sampling.race import Chance, chance, pick, ramp, times

from .reference import Floats, is_likely, softmax, spread

BINS = 64


def numbers_of(given: Chance) -> tuple[float, float, float]:
    """All three, in [0, 1)."""
    first, second = given.key
    return first / 2**32, second / 2**32, given.xtc


def test_numbers_of_known_seeds_never_change() -> None:
    """A seed gives the same text next year: these values are part of the interface."""
    assert chance(0, 0, 0) == ((984070042, 61055383), 0.7566837072372437)
    assert chance(42, 7, 1).xtc == 0.792031466960907
    assert chance(-1, 0, 0).key == (1290936414, 471145112)
    assert chance(2**200, 3, 0).key == (4174122624, 1547516460)
    assert derive_seed(42, 1) == 1795052383208722054


def test_any_integer_is_a_seed_of_its_own() -> None:
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64 - 1, 10**400, -(10**400)]
    assert len({chance(seed, 0, 0) for seed in seeds}) == len(seeds)


def test_uniforms_are_exact_in_float32_and_less_than_one() -> None:
    numbers = np.array([chance(0, position, 0).xtc for position in range(5000)])
    assert np.array_equal(numbers, numbers.astype(np.float32))
    assert numbers.min() >= 0
    assert numbers.max() < 1


@pytest.mark.parametrize("argument", ["seed", "position", "attempt"])
def test_numbers_are_uniform_along_every_argument(argument: str) -> None:
    given = [
        numbers_of(chance(**{"seed": 3, "position": 4, "attempt": 5, argument: i}))
        for i in range(20000)
    ]
    for numbers in zip(*given, strict=True):
        observed = np.bincount((np.array(numbers) * BINS).astype(int), minlength=BINS)
        assert is_likely(observed, np.full(BINS, 1 / BINS))


def test_branches_draw_from_other_seeds() -> None:
    seeds = {derive_seed(seed, branch) for seed in (0, 1, -5, 2**90) for branch in range(50)}
    assert len(seeds) == 200


def keys_for(count: int, seed: int) -> mx.array:
    """Keys [count, 2], all different."""
    rng = np.random.default_rng(seed)
    return mx.array(rng.integers(0, 2**32, (count, 2), dtype=np.uint32))


def rows_of(weights: Floats, count: int) -> mx.array:
    return mx.broadcast_to(mx.array(weights.astype(np.float32))[None], (count, len(weights)))


@pytest.mark.parametrize("n", [1, 5, 96, 1000, 4096, 5024])
def test_choices_follow_the_weights(n: int) -> None:
    rng = np.random.default_rng(n)
    weights = np.exp(spread(n, n).astype(np.float64))
    weights[rng.random(n) < 0.3] = 0
    weights[0] = 1.0
    observed = np.zeros(n, dtype=np.int64)
    for turn in range(40):
        rows = rows_of(weights, 500)
        index = pick(rows, ramp(n)[None], keys_for(500, turn))
        observed += np.bincount(np.array(index)[:, 0], minlength=n)
    assert observed[weights == 0].sum() == 0
    assert is_likely(observed, weights / weights.sum())


def test_keys_that_are_counted_up_are_as_good_as_random_ones() -> None:
    weights = np.exp(spread(300, 1).astype(np.float64))
    for place in range(2):
        numbers = np.zeros((20_000, 2), np.uint32)
        numbers[:, place] = np.arange(20_000)
        index = pick(rows_of(weights, 20_000), ramp(300)[None], mx.array(numbers))
        observed = np.bincount(np.array(index)[:, 0], minlength=300)
        assert is_likely(observed, weights / weights.sum())


@pytest.mark.parametrize("n", [128, 300, 5024])
def test_neither_the_order_of_tokens_nor_tokens_of_weight_0_matter(n: int) -> None:
    rng = np.random.default_rng(n)
    ids = rng.permutation(200_000)[:n].astype(np.uint32)
    weights = np.exp(spread(n, n).astype(np.float64))
    order = rng.permutation(n)
    more = np.setdiff1d(np.arange(200_000, 201_000), ids)[: n // 2].astype(np.uint32)
    keys = keys_for(200, 3)
    first = pick(rows_of(weights, 200), mx.array(ids[None]), keys)
    longer = np.concatenate([weights[order], np.zeros(len(more))])
    others = np.concatenate([ids[order], more])
    second = pick(rows_of(longer, 200), mx.array(others[None]), keys)
    assert ids[np.array(first)].tolist() == others[np.array(second)].tolist()


@pytest.mark.parametrize("n", [1000, 5024, pytest.param(32_000, marks=pytest.mark.slow)])
def test_nearly_the_same_weights_mostly_give_the_same_token(n: int) -> None:
    noise = np.random.default_rng(n).normal(size=n)
    one = softmax(spread(n, n).astype(np.float64))
    other = softmax(np.log(one) + 0.5 * noise)
    apart = np.abs(one - other).sum() / 2
    agreed = []
    for turn in range(20):
        keys = keys_for(100, turn)
        first, second = (pick(rows_of(w, 100), ramp(n)[None], keys) for w in (one, other))
        agreed.append(np.mean(np.array(first) == np.array(second)))
    assert np.mean(agreed) > (1 - apart) / (1 + apart) - 0.03


@pytest.mark.parametrize("n", [96, 5024, 151_936])
def test_a_token_of_weight_0_is_never_chosen(n: int) -> None:
    keys = mx.array([[0, 0], [2**32 - 1, 2**32 - 1], [5, 7]], mx.uint32)
    for place in (0, 1, n // 2, n - 1):
        weights = np.zeros((3, n), np.float32)
        weights[:, place] = 1e-30
        assert pick(mx.array(weights), ramp(n)[None], keys).tolist() == [[place]] * 3


def test_a_faint_tail_is_drawn_as_often_as_it_should() -> None:
    """A third of the mass on 150,000 tokens of 2e-6 each, behind one of two thirds."""
    n = 151_936
    weights = np.full(n, 0.5 / (n - 1))
    weights[0] = 1.0
    indexes = []
    for turn in range(20):
        index = pick(rows_of(weights, 20), ramp(n)[None], keys_for(20, turn))
        indexes += np.array(index)[:, 0].tolist()
    tail = np.array([index for index in indexes if index])
    assert abs(len(tail) / len(indexes) - 1 / 3) < 0.1
    assert is_likely(np.bincount(tail * 8 // n, minlength=8), np.full(8, 1 / 8))


def test_times_are_exponential_and_independent_along_the_tokens() -> None:
    ids = mx.array(np.arange(1 << 18, dtype=np.uint32))[None]
    (found,) = np.array(times(ids, mx.array([[1, 2]], mx.uint32))).astype(np.float64)
    shares = -np.expm1(-found)
    assert found.min() > 0 and np.isfinite(found).all()
    bins = 256
    assert is_likely(
        np.bincount((shares * bins).astype(int), minlength=bins), np.full(bins, 1 / bins)
    )
    smallest = np.bincount((shares[shares < 2**-8] * 2**14).astype(int), minlength=64)
    assert is_likely(smallest, np.full(64, 1 / 64))
    for apart in (1, 2, 128, 1187):
        cells = (shares[apart:] * 16).astype(int) * 16 + (shares[:-apart] * 16).astype(int)
        assert is_likely(np.bincount(cells, minlength=256), np.full(256, 1 / 256))


def test_times_of_known_keys_never_change() -> None:
    """A seed gives the same text next year."""
    ids = mx.array([[0, 1, 151_935]], mx.uint32)
    keys = mx.array([[1, 2], [2**32 - 1, 2**31]], mx.uint32)
    expected = [[1.5748775, 3.9634640, 0.7819152], [0.1568374, 2.6681740, 0.1852496]]
    assert np.allclose(np.array(times(ids, keys)), expected, rtol=1e-5)
