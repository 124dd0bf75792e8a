"""The plain distribution, against mlx-lm's functions and against NumPy."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mlx_lm import sample_utils
from mlx_lm.sample_utils import make_logits_processors, make_repetition_penalty

from mlxgen.sampling import DrawRow, SamplingSettings, final_distribution
from mlxgen.sampling.distribution import apply_min_p, apply_top_k, apply_top_p
from mlxgen.sampling.processors import (
    adjusted,
    apply_mask,
    stack_biases,
    stack_masks,
    stack_penalties,
)

from ..effort import tries
from .reference import counts_of, excludes, reference, reference_and_whether_sure, spread, words_of

VOCAB = 500

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1},
    {"temperature": 0.3},
    {"temperature": 3.0},
    {"top_p": 0.8},
    {"top_p": 0.05},
    {"top_p": 0.999, "temperature": 0.5},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 1},
    {"top_k": 40, "temperature": 1.7},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05},
    {"xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.5},
    {"top_p": 0.9, "min_p": 0.05, "top_k": 10, "temperature": 0.8},
    {"top_p": 0.9, "xtc_probability": 1.0, "xtc_threshold": 0.1, "top_k": 4},
    {"min_p": 0.02, "xtc_probability": 1.0, "xtc_threshold": 0.02, "temperature": 1.4},
    {"xtc_probability": 1.0, "xtc_threshold": 0.02, "top_k": 3},
]


def row_of(options: dict[str, Any], **draw: Any) -> DrawRow:
    return DrawRow(SamplingSettings(**{"temperature": 1.0, **options}), 0, 0, **draw)


def by_mlx_lm(logits: mx.array, options: dict[str, Any], special: list[int]) -> mx.array:
    """The log-probabilities that mlx-lm's sampler would draw from, at temperature 1."""
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    if "top_p" in options:
        logprobs = sample_utils.apply_top_p(logprobs, options["top_p"])
    if "min_p" in options:
        logprobs = sample_utils.apply_min_p(logprobs, options["min_p"])
    if "xtc_probability" in options:
        logprobs = sample_utils.apply_xtc(
            logprobs, options["xtc_probability"], options["xtc_threshold"], special
        )
    if "top_k" in options:
        logprobs = sample_utils.apply_top_k(logprobs, options["top_k"])
    return logprobs


def survivors(array: mx.array) -> list[list[int]]:
    return [np.flatnonzero(np.array(row)).tolist() for row in array]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("special", [[], [3, 44, 499]])
def test_mlx_lm_leaves_the_same_tokens(options: dict[str, Any], special: list[int]) -> None:
    logits = mx.array(np.stack([spread(VOCAB, seed) for seed in range(12)]))
    expected = by_mlx_lm(logits, options, special)
    probs = final_distribution(logits, [row_of(options)] * 12, xtc_special=special)
    expected = mx.softmax(expected / options.get("temperature", 1), axis=-1)
    assert survivors(probs > 1e-30) == survivors(expected > 1e-30)
    assert mx.allclose(probs, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_mlx_lm_leaves_the_same_tokens_if_many_logits_are_equal(dtype: mx.Dtype) -> None:
    logits = mx.array(np.stack([spread(VOCAB, seed) for seed in range(12)])).astype(dtype)
    logits = logits.astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    one = mx.ones((12, 1))
    for top_p in (0.3, 0.8, 0.95):
        kept = apply_top_p(logits, one * top_p) > -mx.inf
        assert survivors(kept) == survivors(sample_utils.apply_top_p(logprobs, top_p) > -mx.inf)
    for min_p in (0.02, 0.3):
        kept = apply_min_p(logits, one * np.log(min_p)) > -mx.inf
        assert survivors(kept) == survivors(sample_utils.apply_min_p(logprobs, min_p) > -mx.inf)
    for top_k in (1, 7, 60):  # the same values; of equal ones at the edge, the lowest ids
        left = apply_top_k(logits, one * top_k)
        expected = mx.sort(sample_utils.apply_top_k(logprobs, top_k), axis=-1)
        assert mx.array_equal(mx.sort(left, axis=-1) > -mx.inf, expected > -mx.inf) and mx.allclose(
            mx.softmax(mx.sort(left), axis=-1), mx.softmax(expected, axis=-1)
        )


def test_of_equal_logits_top_k_keeps_the_lowest_ids() -> None:
    logits = mx.array([[1.0, 3.0, 2.0, 2.0, 2.0, -1.0, -1.0]])
    assert survivors(apply_top_k(logits, mx.array([[3]])) > -mx.inf) == [[1, 2, 3]]
    assert survivors(apply_top_k(logits, mx.array([[6]])) > -mx.inf) == [[0, 1, 2, 3, 4, 5]]


SETTINGS = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.0, 0.2, 1.0, 1.9]),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1)),
    top_k=st.one_of(st.just(0), st.integers(0, 200)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.floats(0, 0.5),
    repetition_penalty=st.sampled_from([1.0, 0.8, 1.2]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.3]),
    logit_bias=st.dictionaries(st.integers(0, 119), st.floats(-5, 5), max_size=4),
)


@given(st.integers(0, 10**6), SETTINGS, st.floats(0.3, 1))
@settings(max_examples=tries(150))
def test_it_is_the_distribution_that_numpy_gives(
    seed: int, options: SamplingSettings, density: float
) -> None:
    vocab = 120
    rng = np.random.default_rng(seed)
    logits = spread(vocab, seed)
    prompt, generated = rng.integers(0, vocab, (2, 15)).tolist()
    allowed = rng.random(vocab) < density
    allowed[7] = True
    row = DrawRow(options, seed, 0, words=words_of(allowed), counts=counts_of(prompt, generated))
    given_: dict[str, Any] = {
        "prompt": prompt,
        "generated": generated,
        "allowed": allowed,
        "xtc": excludes(row),
        "special": [11, 50],
    }
    expected, sure = reference_and_whether_sure(logits, options, **given_)
    assume(sure)
    probs = np.array(final_distribution(mx.array(logits)[None], [row], xtc_special=[11, 50])[0])
    assert np.array_equal(probs > 1e-30, expected > 1e-30)
    assert np.allclose(probs, expected, rtol=1e-3, atol=1e-7)


def test_rows_of_a_batch_are_what_they_are_alone() -> None:
    rows = [row_of(options) for options in OPTIONS]
    logits = mx.array(np.stack([spread(VOCAB, seed) for seed in range(len(rows))]))
    together = final_distribution(logits, rows)
    for i, row in enumerate(rows):
        assert mx.array_equal(final_distribution(logits[i : i + 1], [row])[0], together[i])


def test_a_greedy_row_shows_the_probabilities_at_temperature_one() -> None:
    logits = spread(VOCAB, 0)
    row = DrawRow(SamplingSettings(top_k=2, xtc_probability=1, logit_bias={4: 5.0}), 0, 0)
    expected = reference(logits, SamplingSettings(temperature=1, logit_bias={4: 5.0}))
    probs = final_distribution(mx.array(logits)[None], [row])
    assert np.allclose(np.array(probs[0]), expected, rtol=1e-4, atol=1e-8)


def test_a_temperature_for_one_draw_takes_the_place_of_the_settings() -> None:
    logits = mx.array(spread(VOCAB, 0))[None]
    hot = final_distribution(logits, [row_of({"top_k": 9, "temperature": 1.8})])
    warm = row_of({"top_k": 9, "temperature": 0.4}, temperature=1.8)
    assert mx.array_equal(final_distribution(logits, [warm]), hot)


def test_a_row_without_a_possible_token_is_nan() -> None:
    assert mx.all(mx.isnan(final_distribution(mx.full((1, 9), -mx.inf), [row_of({"top_p": 0.5})])))


def test_min_k_ends_at_the_steepest_drop_and_keeps_at_least_its_share() -> None:
    logits = mx.array([[9.0, 8.9, 8.8, 2.0, 1.9, -1.0, -mx.inf]])

    def kept(min_k: float) -> int:
        settings = SamplingSettings(temperature=1.0, min_k=min_k)
        found = final_distribution(logits, [DrawRow(settings, 1, 0)])
        return int(np.count_nonzero(np.array(found) > 0))

    assert kept(0.0) == 3
    assert kept(45.0) == 4  # 45 over a range of 10
    assert kept(1e6) == 6
    assert kept(-1.0) == 6


def test_the_last_token_that_min_k_keeps_is_not_lost_by_rounding() -> None:
    settings = SamplingSettings(temperature=1.0, min_k=40.0)
    for seed in range(100):
        logits = spread(640, seed, scale=0.2)
        found = np.array(final_distribution(mx.array(logits[None]), [DrawRow(settings, 1, 0)]))
        expected = reference(logits, settings)
        assert np.count_nonzero(found > 0) == np.count_nonzero(expected)


# Biases, penalties and masks


def processed(logits: mx.array, rows: list[DrawRow]) -> mx.array:
    """The logits as the distribution has them: at temperature 1, up to a constant."""
    each = [row.settings for row in rows]
    logits = adjusted(logits, rows, each, stack_biases(each), stack_penalties(each))
    if all(row.words is None for row in rows):
        return logits
    return apply_mask(logits, stack_masks(rows, logits.shape[-1]))


def processed_by_mlx_lm(logits: mx.array, tokens: list[int], **options: Any) -> mx.array:
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
    expected = processed_by_mlx_lm(mx.array(logits), tokens, **options)
    assert mx.allclose(processed(logits, [row]), expected, rtol=1e-6, atol=1e-6)


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
