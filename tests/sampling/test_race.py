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


def test_numbers_of_known_seeds_and_keys_never_change() -> None:
    """A seed gives the same text next year: these values are part of the interface."""
    assert chance(0, 0, 0) == ((984070042, 61055383), 0.7566837072372437)
    assert chance(42, 7, 1).xtc == 0.792031466960907
    assert chance(-1, 0, 0).key == (1290936414, 471145112)
    assert chance(2**200, 3, 0).key == (4174122624, 1547516460)
    assert derive_seed(42, 1) == 1795052383208722054
    keys = mx.array([[1, 2], [2**32 - 1, 2**31]], mx.uint32)
    found = np.array(times(mx.array([[0, 1, 151_935]], mx.uint32), keys))
    expected = [[1.5748775, 3.9634640, 0.7819152], [0.1568374, 2.6681740, 0.1852496]]
    assert np.allclose(found, expected, rtol=1e-5)


def test_any_integer_is_a_seed_of_its_own_and_so_is_that_of_every_branch() -> None:
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64 - 1, 10**400, -(10**400)]
    assert len({chance(seed, 0, 0) for seed in seeds}) == len(seeds)
    assert len({derive_seed(seed, branch) for seed in seeds for branch in range(20)}) == 200


@pytest.mark.parametrize("argument", ["seed", "position", "attempt"])
def test_numbers_are_uniform_along_every_argument(argument: str) -> None:
    given = [
        numbers_of(chance(**{"seed": 3, "position": 4, "attempt": 5, argument: i}))
        for i in range(20000)
    ]
    for numbers in zip(*given, strict=True):
        observed = np.bincount((np.array(numbers) * BINS).astype(int), minlength=BINS)
        assert is_likely(observed, np.full(BINS, 1 / BINS))
    uniforms = np.array(given)[:, 2]
    assert np.array_equal(uniforms, uniforms.astype(np.float32)) and uniforms.max() < 1


def keys_for(count: int, seed: int) -> mx.array:
    """Keys [count, 2], all different."""
    rng = np.random.default_rng(seed)
    return mx.array(rng.integers(0, 2**32, (count, 2), dtype=np.uint32))


def rows_of(weights: Floats, count: int) -> mx.array:
    """Scores [count, n] from weights."""
    with np.errstate(divide="ignore"):
        scores = np.log(weights).astype(np.float32)
    return mx.broadcast_to(mx.array(scores)[None], (count, len(weights)))


@pytest.mark.parametrize("n", [128, 300])
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


def test_nearly_the_same_weights_mostly_give_the_same_token() -> None:
    """What keeps a draft by a smaller model: see the bound in ``race``."""
    n = 1000
    noise = np.random.default_rng(n).normal(size=n)
    one = softmax(spread(n, n).astype(np.float64))
    other = softmax(np.log(one) + 0.5 * noise)
    apart = np.abs(one - other).sum() / 2
    first, second = (pick(rows_of(w, 2000), ramp(n)[None], keys_for(2000, 1)) for w in (one, other))
    assert np.mean(np.array(first) == np.array(second)) > (1 - apart) / (1 + apart) - 0.03


def test_a_faint_tail_is_drawn_as_often_as_it_should() -> None:
    """A third of the mass on 150,000 tokens of 2e-6 each, behind one of two thirds."""
    n = 151_936
    weights = np.full(n, 0.5 / (n - 1))
    weights[0] = 1.0
    indexes = []
    for turn in range(10):
        index = pick(rows_of(weights, 20), ramp(n)[None], keys_for(20, turn))
        indexes += np.array(index)[:, 0].tolist()
    tail = np.array([index for index in indexes if index])
    assert abs(len(tail) / len(indexes) - 1 / 3) < 0.15
    assert is_likely(np.bincount(tail * 4 // n, minlength=4), np.full(4, 1 / 4))


def test_neighbouring_tokens_have_independent_times() -> None:
    ids = mx.array(np.arange(1 << 18, dtype=np.uint32))[None]
    (found,) = np.array(times(ids, mx.array([[1, 2]], mx.uint32))).astype(np.float64)
    shares = -np.expm1(-found)  # uniform, if the times are exponential
    for apart in (1, 2, 128, 1187):
        cells = (shares[apart:] * 16).astype(int) * 16 + (shares[:-apart] * 16).astype(int)
        assert is_likely(np.bincount(cells, minlength=256), np.full(256, 1 / 256))
