"""What draws are made from, against mlx-lm's functions and against NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mlx_lm import sample_utils
from mlx_lm.sample_utils import make_logits_processors

from mlxgen.sampling import DrawRow, Sampler, SamplingSettings

from ..effort import tries
from .reference import (
    SETTINGS,
    UNCHANGED,
    changes_of,
    excludes,
    options_for,
    reference_and_whether_sure,
    spread,
    words_of,
)

VOCAB = 500


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


@pytest.mark.parametrize("special", [[], [3, 44, 499]])
def test_mlx_lm_leaves_the_same_tokens(special: list[int]) -> None:
    logits = mx.array(np.stack([spread(VOCAB, seed) for seed in range(12)]))
    for options in options_for("truncation"):
        expected = by_mlx_lm(logits, options, special)
        expected = mx.softmax(expected / options.get("temperature", 1), axis=-1)
        sampler = Sampler(VOCAB, xtc_special=special)
        probs = sampler.distribution(logits, [row_of(options)] * 12)
        assert mx.array_equal(probs > 1e-30, expected > 1e-30), options
        assert mx.allclose(probs, expected, rtol=1e-4, atol=1e-7), options


@given(
    st.integers(0, 10**6),
    SETTINGS,
    st.floats(0.3, 1),
    st.sampled_from([0.2, 2.0]),
    st.sampled_from([0, 2]),
    st.booleans(),
    st.sampled_from([None, None, 0.3]),
)
@settings(max_examples=tries(300))
def test_it_is_the_distribution_that_numpy_gives(
    seed: int,
    options: SamplingSettings,
    density: float,
    scale: float,
    levels: int,
    own: bool,
    target: float | None,
) -> None:
    """Also among equal logits and impossible tokens, and with a temperature for this draw."""
    vocab = 120
    rng = np.random.default_rng(seed)
    logits = spread(vocab, seed, scale=scale)
    if levels:  # among equal logits; those that a penalty makes equal may differ by rounding
        options = replace(options, **UNCHANGED)
        logits = (np.round(logits * levels) / levels).astype(np.float32)
    logits[rng.integers(0, vocab, 6)] = -np.inf
    prompt, generated = rng.integers(0, vocab, (2, 15)).tolist()
    allowed = rng.random(vocab) < density
    allowed[np.isfinite(logits).argmax()] = True
    row = DrawRow(
        options, seed, 0, words=words_of(allowed), changes=changes_of(options, prompt, generated)
    )
    if options.temperature < 1:  # float32 has no number for the share of some token then
        target = None
    if target is not None:
        row = row._replace(settings=replace(options, adaptive_target=0.5), target=target)
    if own:
        settings = replace(row.settings, temperature=0.7)
        row = row._replace(settings=settings, temperature=options.temperature)
    given_: dict[str, Any] = {
        "prompt": prompt,
        "generated": generated,
        "allowed": allowed,
        "xtc": excludes(row),
        "special": [11, 50],
        "target": target,
    }
    expected, sure = reference_and_whether_sure(logits, options, **given_)
    assume(sure)
    sampler = Sampler(vocab, xtc_special=[11, 50])
    probs = np.array(sampler.distribution(mx.array(logits)[None], [row])[0])
    assert np.array_equal(probs > 1e-30, expected > 1e-30)
    assert np.allclose(probs, expected, rtol=1e-3, atol=1e-7)


def test_biases_and_penalties_are_those_of_mlx_lm() -> None:
    """All of mlx-lm's penalties count the same tokens, so here all are generated."""
    logits, tokens = mx.array(spread(100, 1))[None], [5, 7, 7, 7, 50, 9, 5]
    for options in options_for("penalties"):
        changes = changes_of(SamplingSettings(**options), [], tokens)
        sizes = {f"{name}_context_size": 10**6 for name in ("repetition", "presence", "frequency")}
        expected = mx.array(logits)
        for processor in make_logits_processors(**{**sizes, **options}):
            expected = processor(mx.array(tokens), expected)
        found = Sampler(100).distribution(logits, [row_of(options, changes=changes)])
        assert mx.allclose(found, mx.softmax(expected, axis=-1), rtol=1e-4, atol=1e-9), options
