"""A draw that was read, compared with the distribution that it was made from."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.engine.kv.held import Later
from mlxgen.engine.step.drawn import Drawn, DrawnView
from mlxgen.sampling import CANDIDATES, DrawRow, Sampler, SamplingSettings, Want

from ...effort import tries

VOCAB = 300  # more than the candidates, so that flat rows are drawn again
SAMPLER = Sampler(VOCAB)
SETTINGS = [
    SamplingSettings(temperature=0),
    SamplingSettings(temperature=1.0),
    SamplingSettings(temperature=0.7, top_p=0.9),
]
WANTS = [Want(), Want(prob=True, candidates=CANDIDATES, logprob=True, top=5)]

rows = st.lists(
    st.tuples(st.sampled_from(SETTINGS), st.sampled_from([0.01, 8.0])), min_size=2, max_size=2
)


def drawn_from(
    kinds: list[tuple[SamplingSettings, float]], seed: int, want: Want
) -> tuple[Drawn, np.ndarray, list[DrawRow]]:
    """A draw from logits that are flat or peaked."""
    dice = np.random.default_rng(seed)
    logits = np.stack([scale * dice.standard_normal(VOCAB) for _, scale in kinds])
    draws = [DrawRow(each, seed, position) for position, (each, _) in enumerate(kinds)]
    array = mx.array(logits.astype(np.float32))
    return Drawn(SAMPLER, array, draws, want), np.array(array), draws


@settings(max_examples=tries(120))
@given(rows, st.integers(0, 10_000), st.sampled_from(WANTS), st.integers(0, VOCAB - 1))
def test_what_is_seen_of_a_draw_is_what_its_logits_say(
    kinds: list[tuple[SamplingSettings, float]], seed: int, want: Want, other: int
) -> None:
    drawn, logits, draws = drawn_from(kinds, seed, want)
    whole = SAMPLER.sample(mx.array(logits), draws, exact=True)
    expected = np.array(whole.token).tolist()
    final = np.array(SAMPLER.distribution(mx.array(logits), draws))
    for row, token in enumerate(expected):
        view = DrawnView(drawn, row)
        assert view.token == drawn.tokens()[row] == token
        later = Later(drawn, row)
        assert row in drawn.redrawn or later.read() == token
        np.testing.assert_array_equal(view.logits, logits[row])
        np.testing.assert_allclose(view.distribution, final[row], atol=1e-6)
        for asked in (token, other):
            np.testing.assert_allclose(view.probability(asked), final[row, asked], atol=1e-5)
        ids, probs = view.candidates
        best = np.sort(final[row])[::-1][:CANDIDATES]
        np.testing.assert_allclose(probs, best[best > 0], atol=1e-5)
        np.testing.assert_allclose(final[row, ids], probs, atol=1e-5)
        assert len(set(ids.tolist())) == len(ids)
        if not want.logprob:
            continue
        model = logits[row] - np.log(np.exp(logits[row].astype(np.float64)).sum())
        for asked in (token, other):
            logprob, top = view.report(asked, 3)
            np.testing.assert_allclose(logprob or 0.0, model[asked], atol=1e-4)
            np.testing.assert_allclose([model[id] for id, _ in top], [p for _, p in top], atol=1e-4)
            np.testing.assert_allclose([p for _, p in top], np.sort(model)[::-1][:3], atol=1e-4)
        few, chances = view.best(4)
        np.testing.assert_array_equal(few, ids[:4])
        np.testing.assert_allclose(chances, probs[:4], atol=1e-6)


def test_only_rows_whose_candidates_fell_short_are_drawn_again() -> None:
    flat, peaked = (SETTINGS[2], 0.01), (SETTINGS[2], 8.0)
    drawn, _, _ = drawn_from([peaked, flat], 1, Want())
    drawn.tokens()
    assert list(drawn.redrawn) == [1]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_logits_are_those_of_the_row_whatever_their_type(dtype: mx.Dtype) -> None:
    whole = (mx.arange(4 * VOCAB).reshape(4, VOCAB) / 7 - 50).astype(dtype)
    expected = np.array(whole.astype(mx.float32))
    draws = [DrawRow(SETTINGS[0], 1, position) for position in range(2)]
    for array, first in ((whole[2:], 2), (whole.reshape(2, 2, VOCAB)[:, 0], 0)):
        drawn = Drawn(SAMPLER, array, draws, Want())
        for row in range(2):
            seen = DrawnView(drawn, row).logits
            at = first + row if first else 2 * row
            np.testing.assert_array_equal(seen, expected[at])
