"""Batches in which every kind of row is there."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from mlxgen.sampling import CANDIDATES, Draw, DrawRow, SamplingSettings, Want

from .reference import counts_of, spread, words_of

EVERYTHING = Want(prob=True, candidates=CANDIDATES, logprob=True, top=5)
SPECIAL = [2, 9]

MIXED: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_n_sigma": 1.0},
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 0.8, "min_p": 0.1},
    {"temperature": 0.9, "top_p": 0.7, "min_k": 30.0},
    {"temperature": 1.2, "top_p": 0.9, "top_k": 5, "min_p": 0.01},
    {"temperature": 1.0, "min_p": 0.01, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"temperature": 1.0, "xtc_probability": 1.0},
    {"temperature": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.001, "top_k": 9},
    {"temperature": 1.0, "top_k": 300},
    {"logit_bias": {5: 30.0}},
    {"temperature": 1.0, "logit_bias": {5: -3.0, 6: 3.0}},
    {"temperature": 0.9, "repetition_penalty": 1.3, "top_p": 0.8},
    {"presence_penalty": 1.5},
    {"temperature": 1.0, "top_k": 1},
]


def mixed_rows(vocab: int, seed: int = 0) -> list[DrawRow]:
    """A row of every kind, every third with a mask, some with a temperature of their own."""
    rng = np.random.default_rng(seed)
    rows = []
    for i, options in enumerate(MIXED):
        rows.append(
            DrawRow(
                SamplingSettings(**options, dry_multiplier=float(i % 4 == 1)),
                seed=seed * 100 + i,
                position=i * 7,
                attempt=i % 2,
                words=words_of(rng.random(vocab) < 0.5) if i % 3 == 0 else None,
                counts=counts_of(
                    rng.integers(0, vocab, 30 + i).tolist(), rng.integers(0, vocab, 9).tolist()
                ),
                temperature=1.3 if i == 2 else None,
                repeating=(
                    rng.permutation(vocab)[: i + 1].astype(np.int32),
                    (rng.random(i + 1) * 5).astype(np.float32),
                )
                if i % 4 == 1
                else None,
            )
        )
    return rows


def fields_of(draw: Draw) -> dict[str, mx.array]:
    return {name: array for name, array in draw._asdict().items() if array is not None}


def assert_same(left: Draw, right: Draw) -> None:
    """The same tokens, and nearly the same numbers, in every field that both have."""
    first, second = fields_of(left), fields_of(right)
    for name in first.keys() & second.keys():
        one, other = np.array(first[name]), np.array(second[name])
        assert np.allclose(one, other, rtol=1e-4, atol=1e-7), name


def logits_for(vocab: int, count: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.stack([spread(vocab, seed) for seed in range(count)])).astype(dtype)
