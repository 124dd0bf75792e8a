"""Compiled draws: few shapes, bounded in number, and the same draw in every one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.recent import Recent
from mlxgen.sampling import DrawRow, Sampler, SamplingSettings, Want
from mlxgen.sampling.sampler import KEPT, size_for

from .mixed import MIXED, SPECIAL, assert_same, fields_of, logits_for, mixed_rows
from .reference import counts_of, words_of


def test_sizes_are_few_and_at_most_a_quarter_over() -> None:
    sizes = {size_for(rows) for rows in range(1, 1025)}
    assert all(rows <= size_for(rows) <= 1.25 * rows for rows in range(1, 1025))
    assert all(size_for(size) == size for size in sizes)
    assert len(sizes) == 8 + 4 * 7
    assert sorted(sizes)[:12] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16]


WISHES = [
    Want(),
    Want(prob=True),
    Want(candidates=128),
    Want(logprob=True),
    *(Want(logprob=True, top=n) for n in range(1, 21)),
]


def batches(vocab: int, count: int) -> Iterator[tuple[mx.array, list[DrawRow], Want, bool]]:
    """Batches as mixed traffic makes them: rows come and go, and so do masks and wishes."""
    dice = random.Random(1)
    words = words_of(np.random.default_rng(0).random(vocab) < 0.5)
    chosen = [SamplingSettings(**options) for options in MIXED]
    for i in range(40):
        biases = dict.fromkeys(range(1, 2 + i), 1.0)
        chosen.append(SamplingSettings(temperature=i / 20, logit_bias=biases))
    logits = logits_for(vocab, 40)
    for i in range(count):
        rows = [
            DrawRow(
                dice.choice(chosen),
                seed=dice.randrange(9),
                position=i,
                words=words if dice.random() < 0.2 else None,
                counts=counts_of(range(dice.randrange(1, vocab)), [1, 2]),
            )
            for _ in range(dice.randrange(1, 41))
        ]
        yield logits[: len(rows)], rows, dice.choice(WISHES), dice.random() < 0.1


def test_random_batches_need_few_programs_and_each_meets_one_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What MLX keeps for a function grows with the shapes that it meets."""
    met: list[set[Any]] = []

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        shapes: set[Any] = set()
        met.append(shapes)

        def recording(*inputs: Any) -> Any:
            shapes.add(tuple(_shape(each) for each in inputs))
            return function(*inputs)

        return recording

    monkeypatch.setattr("mlxgen.sampling.sampler.mx.compile", compile)
    sampler = Sampler(200, xtc_special=SPECIAL)
    for logits, rows, want, exact in batches(200, 300):
        sampler.sample(logits, rows, want=want, exact=exact)
        assert len(sampler._programs) <= KEPT
    assert len(sampler._programs) == KEPT
    assert all(len(shapes) == 1 for shapes in met)


def _shape(value: Any) -> Any:
    if isinstance(value, mx.array):
        return tuple(value.shape), str(value.dtype)
    return tuple(_shape(each) for each in value)


def test_programs_that_were_dropped_draw_the_same_when_made_again() -> None:
    rows, logits = mixed_rows(200), logits_for(200, len(MIXED))
    sampler = Sampler(200, xtc_special=SPECIAL)
    first = sampler.sample(logits, rows)
    sampler._programs = Recent(1)
    assert_same(first, sampler.sample(logits, rows))


@pytest.mark.parametrize("count", [9, 11, 33, 35])
def test_rows_that_fill_up_a_group_change_nothing(count: int) -> None:
    sampler = Sampler(200, xtc_special=SPECIAL)
    want = Want(prob=True, candidates=5, logprob=True, top=3)
    for options in MIXED:
        chosen = SamplingSettings(**options)
        counts = counts_of([1, 2], [3])
        alike = [DrawRow(chosen, i, i, counts=counts) for i in range(count)]
        other = DrawRow(SamplingSettings(temperature=0 if chosen.temperature else 1), 0, 0)
        rows = [*alike[:3], other, *alike[3:]]
        logits = logits_for(200, len(rows))
        draw = sampler.sample(logits, rows, want=want)
        for i in (0, 3, count):
            alone = sampler.sample(logits[i : i + 1], [rows[i]], want=want)
            picked = {k: v[i : i + 1] for k, v in fields_of(draw).items()}
            for name, array in fields_of(alone).items():
                assert np.array(array).tobytes() == np.array(picked[name]).tobytes(), name


def test_compiled_draws_are_the_same_in_every_batch(compiled: None) -> None:
    del compiled
    vocab, dice = 200, random.Random(2)
    sampler = Sampler(vocab, xtc_special=SPECIAL)
    rows, logits = mixed_rows(vocab), logits_for(vocab, len(MIXED))
    alone = [sampler.sample(logits[i : i + 1], [row]).token.item() for i, row in enumerate(rows)]
    for _ in range(15):
        chosen = [dice.randrange(len(rows)) for _ in range(dice.randrange(2, 20))]
        want = dice.choice([Want(), Want(logprob=True, top=2)])
        draw = sampler.sample(logits[mx.array(chosen)], [rows[i] for i in chosen], want=want)
        assert draw.token.tolist() == [alone[i] for i in chosen]
