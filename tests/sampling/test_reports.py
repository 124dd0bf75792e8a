"""The sampler: rows that cannot be drawn, and what a draw reports."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlxgen.sampling import (
    CANDIDATES,
    DrawRow,
    Sampler,
    SamplingSettings,
    Want,
)

from .mixed import EVERYTHING, MIXED, SPECIAL, fields_of, logits_for, mixed_rows
from .reference import (
    counts_of,
    listed,
    rows_for,
    spread,
)

# What cannot be drawn


def broken(vocab: int, filling: str) -> npt.NDArray[np.float32]:
    logits = spread(vocab, 0)
    if filling == "all nan":
        logits[:] = np.nan
    elif filling == "nan":
        logits[vocab // 2] = np.nan
    elif filling == "negative nan":
        logits[vocab - 1] = -np.nan
    elif filling == "inf":
        logits[3] = np.inf
    else:
        logits[:] = -np.inf
    return logits


@pytest.mark.parametrize("filling", ["all nan", "nan", "negative nan", "inf", "all -inf"])
@pytest.mark.parametrize("vocab", [50, 640, 8192])
@pytest.mark.parametrize("exact", [False, True])
def test_logits_that_allow_no_draw_give_no_token(filling: str, vocab: int, exact: bool) -> None:
    """Token -1, for every kind of row, and the rest of the batch does not notice."""
    rows = [row._replace(words=None) for row in mixed_rows(vocab)]
    good = logits_for(vocab, len(rows))
    sampler = Sampler(vocab)
    healthy = listed(sampler.sample(good, rows, exact=exact).token)
    assert min(healthy) >= 0
    for victim in range(len(rows)):
        bad = np.array(good)
        bad[victim] = broken(vocab, filling)
        draw = sampler.sample(mx.array(bad), rows, exact=exact)
        assert listed(draw.token) == [*healthy[:victim], -1, *healthy[victim + 1 :]]
        assert draw.exact is not None
        assert draw.exact[victim].item() is True  # another draw would not help


@pytest.mark.parametrize("options", MIXED)
def test_a_mask_that_allows_nothing_gives_no_token(options: dict[str, Any]) -> None:
    row = DrawRow(
        SamplingSettings(**options),
        0,
        0,
        words=np.zeros(4, dtype=np.int32),
        counts=counts_of([], []),
    )
    draw = Sampler(100).sample(logits_for(100, 1), [row], want=EVERYTHING)
    assert listed(draw.token) == [-1]
    assert draw.candidates is not None
    assert set(listed(draw.candidates[0])) == {-1}
    assert draw.candidate_probs is not None
    assert set(listed(draw.candidate_probs[0])) == {0.0}


# Reports


@pytest.mark.parametrize("vocab", [90, 1000, 8200])
def test_reports_are_those_of_the_final_distribution(vocab: int) -> None:
    rows, logits = mixed_rows(vocab), logits_for(vocab, len(MIXED))
    sampler = Sampler(vocab, xtc_special=SPECIAL)
    draw = sampler.sample(logits, rows, want=EVERYTHING, exact=True)
    plain = np.array(sampler.distribution(logits, rows))
    assert draw.prob is not None and draw.candidates is not None
    assert draw.candidate_probs is not None
    for i, token in enumerate(listed(draw.token)):
        assert np.isclose(draw.prob[i].item(), plain[i, token], rtol=1e-3)
        ids, probs = np.array(draw.candidates[i]), np.array(draw.candidate_probs[i])
        count = int(np.sum(plain[i] > 1e-30))
        assert np.all(np.diff(probs) <= 0)
        assert np.all(ids[: min(count, CANDIDATES, vocab)] >= 0)
        assert np.all((ids < vocab) & ((ids >= 0) == (probs > 0)))
        assert np.allclose(probs[ids >= 0], plain[i, ids[ids >= 0]], rtol=1e-3, atol=1e-9)
        if count <= CANDIDATES:
            assert np.isclose(probs.sum(), 1, atol=1e-5)
            assert token in ids


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("vocab", [90, 8200])
def test_log_probabilities_are_those_of_the_model(vocab: int, dtype: mx.Dtype) -> None:
    rows, logits = mixed_rows(vocab), logits_for(vocab, len(MIXED), dtype)
    draw = Sampler(vocab).sample(logits, rows, want=Want(logprob=True, top=7))
    logits = logits.astype(mx.float32)
    expected = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    assert draw.logprob is not None and draw.top_tokens is not None
    assert draw.top_logprobs is not None
    for i, token in enumerate(listed(draw.token)):
        assert np.isclose(draw.logprob[i].item(), expected[i, token], atol=2e-5)
        order = np.lexsort((np.arange(vocab), -np.array(logits[i])))[:7]
        assert draw.top_tokens[i].tolist() == order.tolist()
        assert np.allclose(np.array(draw.top_logprobs[i]), expected[i, order], atol=2e-5)


def test_only_what_is_wanted_is_there() -> None:
    sampler, logits, rows = Sampler(90), logits_for(90, 16), mixed_rows(90)
    assert set(fields_of(sampler.sample(logits, rows))) == {"token", "exact"}
    draw = sampler.sample(logits[:1], rows[:1], want=Want(candidates=3))
    assert set(fields_of(draw)) == {"token", "candidates", "candidate_probs"}
    assert draw.candidates is not None
    assert draw.candidates.shape == (1, 3)
    draw = sampler.sample(logits[:1], rows[:1], want=Want(logprob=True))
    assert set(fields_of(draw)) == {"token", "logprob"}
    draw = sampler.sample(logits[:1], rows[:1], want=Want(top=128))
    assert draw.top_tokens is not None
    assert sorted(listed(draw.top_tokens)[0]) == list(range(90))


def test_excluded_top_choices_are_no_candidates() -> None:
    logits = mx.log(mx.array([[0.4, 0.3, 0.2, 0.06, 0.04]]))
    chosen = SamplingSettings(temperature=1, min_p=0.01, xtc_probability=1, xtc_threshold=0.1)
    draw = Sampler(5).sample(logits, rows_for(chosen, 1), want=Want(candidates=5))
    assert draw.candidates is not None and draw.candidate_probs is not None
    assert draw.candidates.tolist() == [[2, 3, 4, -1, -1]]
    assert np.allclose(np.array(draw.candidate_probs[0]), [2 / 3, 0.2, 2 / 15, 0, 0], atol=1e-6)
