from __future__ import annotations

import numpy as np
import pytest

from mlxgen.sampling import derive_seed, uniform
from mlxgen.sampling.draws import INNER, LANES, OUTER, XTC, uniforms

from .reference import is_likely

BINS = 64


def test_numbers_stay_what_they_are() -> None:
    """A seed gives the same text next year: these values are part of the interface."""
    assert uniform(0, 0, 0) == 0.2291216254234314
    assert uniform(42, 7, 1, lane=2) == 0.792031466960907
    assert uniform(-1, 0, 0) == 0.3005695343017578
    assert uniform(2**200, 3, 0) == 0.9718636274337769
    assert derive_seed(42, 1) == 1795052383208722054


def test_a_draw_takes_the_first_lanes() -> None:
    assert (INNER, OUTER, XTC) == (0, 1, 2)
    assert uniforms(5, 6, 7) == tuple(uniform(5, 6, 7, lane) for lane in range(3))


def test_every_argument_counts() -> None:
    arguments = [(s, p, a, n) for s in (0, 1) for p in (0, 1) for a in (0, 1) for n in (0, 1)]
    arguments += [(0, 0, 0, LANES), (0, 0, 0, 5 * LANES + 1)]
    assert len({uniform(*each) for each in arguments}) == len(arguments)


def test_any_integer_is_a_seed_of_its_own() -> None:
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64 - 1, 10**400, -(10**400)]
    drawn = [tuple(uniform(seed, position, 0) for position in range(4)) for seed in seeds]
    assert len(set(drawn)) == len(seeds)


def test_numbers_are_exact_in_float32_and_less_than_one() -> None:
    numbers = np.array([uniform(0, position, 0) for position in range(5000)])
    assert np.array_equal(numbers, numbers.astype(np.float32))
    assert numbers.min() >= 0
    assert numbers.max() < 1


@pytest.mark.parametrize("argument", ["seed", "position", "attempt", "lane"])
def test_numbers_are_uniform_along_every_argument(argument: str) -> None:
    numbers = [
        uniform(**{"seed": 3, "position": 4, "attempt": 5, argument: i}) for i in range(20000)
    ]
    observed = np.bincount((np.array(numbers) * BINS).astype(int), minlength=BINS)
    assert is_likely(observed, np.full(BINS, 1 / BINS))


@pytest.mark.parametrize("other", [(0, 1), (1, 0)])
def test_neighbours_are_independent(other: tuple[int, int]) -> None:
    pairs = [(uniform(9, p, 0), uniform(9, p + other[0], other[1])) for p in range(20000)]
    cells = [int(a * 8) * 8 + int(b * 8) for a, b in pairs]
    assert is_likely(np.bincount(cells, minlength=64), np.full(64, 1 / 64))


def test_branches_draw_from_other_seeds() -> None:
    seeds = {derive_seed(seed, branch) for seed in (0, 1, -5, 2**90) for branch in range(50)}
    assert len(seeds) == 200
    assert derive_seed(7, 3) == derive_seed(7, 3)
