from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.sample_utils import make_logits_processors, make_repetition_penalty

from mlxgen.sampling import DrawRow, SamplingSettings
from mlxgen.sampling.processors import (
    adjust,
    apply_mask,
    pad_vocabulary,
    stack_biases,
    stack_counts,
    stack_masks,
    stack_penalties,
)

from ..effort import tries
from .reference import counts_of, spread, words_of


def processed(logits: mx.array, rows: list[DrawRow]) -> mx.array:
    each = [row.settings for row in rows]
    penalties = stack_penalties(each)
    counts = stack_counts(each, rows) if penalties else ()
    logits = adjust(logits, stack_biases(each), counts, penalties)
    if all(row.words is None for row in rows):
        return logits
    return apply_mask(logits, stack_masks(rows, logits.shape[-1]))


def by_mlx_lm(logits: mx.array, tokens: list[int], **options: Any) -> mx.array:
    wide = {f"{name}_context_size": 10**6 for name in ("repetition", "presence", "frequency")}
    for processor in make_logits_processors(**options, **wide):
        logits = processor(mx.array(tokens), logits)
    return logits


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"presence_penalty": 0.8},
        {"frequency_penalty": -0.6},
        {"logit_bias": {3: 2.5, 90: -7.0, 0: 0.1}},
        {
            "repetition_penalty": 1.2,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.3,
            "logit_bias": {5: 30.0, 7: -30.0, 50: 1.0},
        },
    ],
)
def test_biases_and_penalties_are_those_of_mlx_lm(options: dict[str, Any]) -> None:
    """All of mlx-lm's penalties count the same tokens, so here all are generated."""
    logits = mx.array(spread(100, 1))[None]
    tokens = [5, 7, 7, 7, 50, 9, 5]
    row = DrawRow(SamplingSettings(**options), 0, 0, counts=counts_of([], tokens))
    expected = by_mlx_lm(mx.array(logits), tokens, **options)
    assert mx.allclose(processed(logits, [row]), expected, rtol=1e-6, atol=1e-6)


def test_repetition_counts_the_prompt_and_the_other_penalties_do_not() -> None:
    logits = mx.array([[1.0, -1.0, 2.0, -2.0, 3.0]])
    counts = counts_of(prompt=[0, 1], generated=[2, 3, 3])
    settings_ = SamplingSettings(
        repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25
    )
    changed = processed(logits, [DrawRow(settings_, 0, 0, counts=counts)])
    assert changed.tolist() == [[0.5, -2.0, 1.0 - 0.75, -4.0 - 1.0, 3.0]]


def test_what_penalties_look_at_is_what_mlx_lm_looks_at() -> None:
    rng = np.random.default_rng(3)
    logits = mx.array(rng.normal(size=(1, 30)).astype(np.float32))
    tokens = rng.integers(0, 30, size=50).tolist()
    for size in (0, 1, 20, 50, 60):
        counts = counts_of(tokens[:35], tokens[35:], window=size)
        settings_ = SamplingSettings(repetition_penalty=1.4, repetition_context_size=size)
        wanted = make_repetition_penalty(1.4, size)(mx.array(tokens), mx.array(logits))
        assert mx.allclose(processed(logits, [DrawRow(settings_, 0, 0, counts=counts)]), wanted)


def test_penalties_leave_an_impossible_token_impossible() -> None:
    logits = mx.array([[-mx.inf, 1.0]])
    options: dict[str, Any] = {
        "repetition_penalty": 1.5,
        "presence_penalty": -1,
        "frequency_penalty": -1,
    }
    row = DrawRow(SamplingSettings(**options), 0, 0, counts=counts_of([0], [0, 0]))
    assert processed(logits, [row]).tolist() == [[-mx.inf, 1.0]]


def test_rows_without_penalties_or_biases_keep_their_bits() -> None:
    rng = np.random.default_rng(0)
    logits = mx.array(rng.normal(size=(3, 200)).astype(np.float32) * 10)
    plain = SamplingSettings()
    settings_ = SamplingSettings(repetition_penalty=1.5, logit_bias={5: 3.0, 199: 1.0})
    rows = [
        DrawRow(plain, 0, 0),
        DrawRow(settings_, 0, 0, counts=counts_of(range(150), range(90))),
        DrawRow(plain, 0, 0, counts=counts_of(range(20), [])),
    ]
    changed = processed(logits, rows)
    assert mx.array_equal(changed[0], logits[0])
    assert mx.array_equal(changed[2], logits[2])
    assert mx.array_equal(changed[1], processed(logits[1:2], rows[1:2])[0])
    assert not mx.array_equal(changed[1], logits[1])


@given(st.integers(1, 130), st.integers(0, 2**32), st.sampled_from(["float32", "bfloat16"]))
@settings(max_examples=tries(40))
def test_a_mask_forbids_exactly_the_tokens_without_a_bit(vocab: int, seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    allowed = rng.random((2, vocab)) < 0.5
    logits = mx.array(rng.normal(size=(2, vocab)).astype(np.float32)).astype(getattr(mx, dtype))
    words = mx.array(np.stack([words_of(row) for row in allowed])[:, :, None])
    masked = apply_mask(logits, words)
    assert masked.dtype == logits.dtype
    expected = np.where(allowed, np.array(logits.astype(mx.float32)), -np.inf)
    assert np.array_equal(np.array(masked.astype(mx.float32)), expected)


def test_a_row_without_a_mask_is_allowed_everything() -> None:
    logits = mx.zeros((2, 40))
    words = words_of(np.arange(40) % 2 == 0)
    rows = [DrawRow(SamplingSettings(), 0, 0), DrawRow(SamplingSettings(), 0, 0, words=words)]
    changed = processed(logits, rows)
    assert changed[0].tolist() == [0.0] * 40
    assert changed[1].tolist() == [0.0, -mx.inf] * 20


def test_padding_adds_impossible_tokens_up_to_whole_words() -> None:
    padded = pad_vocabulary(mx.ones((2, 33), mx.float16))
    assert padded.shape == (2, 64)
    assert padded.dtype == mx.float32
    assert mx.all(padded[:, 33:] == -mx.inf)
    assert pad_vocabulary(mx.ones((1, 64))).shape == (1, 64)
