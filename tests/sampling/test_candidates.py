from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.sampling.candidates import CANDIDATES, best, kept_first

from ..effort import tries
from .reference import listed, spread


@pytest.mark.parametrize("vocab", [20, 128, 160, 8192, 8224, 10_016, 151_936])
@pytest.mark.parametrize("scale", [2.0, 0.0])
def test_the_best_come_first_and_equals_by_id(vocab: int, scale: float) -> None:
    logits = np.stack([spread(vocab, seed, scale=scale) for seed in range(3)])
    k = min(CANDIDATES, vocab)
    ids, values = best(mx.array(logits), k)
    for row in range(3):
        expected = np.sort(logits[row])[::-1][:k]
        found, got = np.array(ids[row]), np.array(values[row])
        assert np.array_equal(got, expected)
        assert np.array_equal(logits[row][found], got)
        assert len(set(found.tolist())) == k
        assert np.array_equal(np.lexsort((found, -got)), np.arange(k))


@given(st.integers(0, 10**6), st.integers(1, 40))
@settings(max_examples=tries(40))
def test_the_best_are_found_among_many_equal_logits(seed: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.integers(-levels, levels, (2, 16_384)).astype(np.float32)
    logits[:, rng.integers(0, 16_384, 5000)] = -np.inf
    ids, values = best(mx.array(logits), CANDIDATES)
    for row in range(2):
        assert np.array_equal(np.array(values[row]), np.sort(logits[row])[::-1][:CANDIDATES])
        above = np.flatnonzero(logits[row] > values[row, -1].item())
        order = above[np.lexsort((above, -logits[row][above]))]
        assert np.array_equal(np.array(ids[row])[: len(order)], order)


def test_zeros_of_either_sign_are_equal() -> None:
    ids, _ = best(mx.array([[-0.0, 0.0, 1.0, -0.0, 0.0, -1e-30, 1e-30]]), 7)
    assert listed(ids[0]) == [2, 6, 0, 1, 3, 4, 5]


def test_kept_candidates_move_to_the_front_in_their_order() -> None:
    kept = mx.array([[False, True, False, True], [True, True, True, True]])
    assert kept_first(kept).tolist() == [[1, 3, 0, 2], [0, 1, 2, 3]]
