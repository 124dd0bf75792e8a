"""The sampler: rows are alone, are drawn with their probabilities, and exactly."""

from __future__ import annotations

from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.sampling import (
    CANDIDATES,
    Draw,
    DrawRow,
    Sampler,
    SamplingSettings,
    Want,
    final_distribution,
)
from mlxgen.sampling.rows import Method

from ..effort import tries
from .mixed import EVERYTHING, MIXED, SPECIAL, assert_same, fields_of, logits_for, mixed_rows
from .reference import (
    counts_of,
    excludes,
    is_likely,
    listed,
    reference,
    reference_and_whether_sure,
    repeat,
    rows_for,
    spread,
    words_of,
)

# A row is alone


@pytest.mark.parametrize("vocab", [100, 1000, 1024, 8224, 12_001])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_row_is_drawn_alone_as_in_a_batch(vocab: int, dtype: mx.Dtype) -> None:
    sampler = Sampler(vocab, xtc_special=SPECIAL)
    rows = mixed_rows(vocab)
    logits = logits_for(vocab, len(rows), dtype)
    together = sampler.sample(logits, rows, want=EVERYTHING)
    for i, row in enumerate(rows):
        alone = Sampler(vocab, xtc_special=SPECIAL)
        draw = alone.sample(logits[i : i + 1], [row], want=EVERYTHING)
        assert_same(draw, Draw(**{k: v[i : i + 1] for k, v in fields_of(together).items()}))
        assert_same(draw, alone.sample(logits[i : i + 1], [row]))


@given(st.permutations(range(len(MIXED))), st.integers(1, len(MIXED)))
@settings(max_examples=tries(12))
def test_the_other_rows_of_a_batch_do_not_matter(order: list[int], size: int) -> None:
    vocab = 1000
    sampler = Sampler(vocab, xtc_special=SPECIAL)
    rows, logits = mixed_rows(vocab), logits_for(vocab, len(MIXED))
    everybody = sampler.sample(logits, rows, want=Want(prob=True))
    chosen = order[:size]
    some = sampler.sample(logits[mx.array(chosen)], [rows[i] for i in chosen], want=Want(prob=True))
    picked = {k: v[mx.array(chosen)] for k, v in fields_of(everybody).items()}
    assert_same(some, Draw(**picked))


def test_earlier_draws_do_not_matter() -> None:
    sampler = Sampler(1000)
    rows, logits = mixed_rows(1000), logits_for(1000, len(MIXED))
    first = sampler.sample(logits, rows)
    for i in range(200):  # more plans than are kept
        sampler.sample(logits[:1], [DrawRow(SamplingSettings(temperature=0.5 + i / 100), 0, 0)])
    assert_same(sampler.sample(logits, rows), first)


def test_settings_that_are_equal_but_not_the_same_draw_the_same() -> None:
    sampler = Sampler(1000)
    logits = logits_for(1000, 1)
    tokens = set()
    for _ in range(100):  # their ids are used again, as each is dropped
        row = DrawRow(SamplingSettings(temperature=0.8, top_k=30), 5, 5)
        tokens.add(sampler.sample(logits, [row]).token.item())
    assert len(tokens) == 1


def test_an_attempt_a_position_and_a_seed_give_another_draw() -> None:
    sampler = Sampler(1000)
    warm = SamplingSettings(temperature=3.0)
    rows = [DrawRow(warm, s, p, a) for s in range(3) for p in range(3) for a in range(3)]
    tokens = listed(sampler.sample(repeat(spread(1000, 0), len(rows)), rows).token)
    assert len(set(tokens)) > 20


@pytest.mark.parametrize("seed", [-1, 2**63, -(2**63), 2**64, 10**300, -(10**300)])
def test_any_integer_is_a_seed(seed: int) -> None:
    rows = [DrawRow(SamplingSettings(temperature=1.0), seed, 0)]
    assert 0 <= Sampler(50).sample(logits_for(50, 1), rows).token.item() < 50  # type: ignore[operator]


# What is drawn


@pytest.mark.parametrize(
    "options, vocab",
    list(product([each for each in MIXED if each.get("temperature")], [70, 300])),
)
def test_tokens_are_drawn_with_the_probabilities_of_the_reference(
    options: dict[str, Any], vocab: int
) -> None:
    logits = spread(vocab, 3)
    chosen = SamplingSettings(**options)
    counts = counts_of([1, 2, 3], [4, 4, 5])
    rows = [row._replace(counts=counts) for row in rows_for(chosen, 6000)]
    draw = Sampler(vocab).sample(repeat(logits, len(rows)), rows, exact=True)
    observed = np.bincount(np.array(draw.token), minlength=vocab)
    given_: dict[str, Any] = {"prompt": [1, 2, 3], "generated": [4, 4, 5]}
    p = chosen.xtc_probability
    expected = (1 - p) * reference(logits, chosen, **given_)
    expected += p * reference(logits, chosen, **given_, xtc=True)
    assert observed[expected == 0].sum() == 0
    assert is_likely(observed, expected)


def test_a_long_vocabulary_is_drawn_with_its_probabilities() -> None:
    vocab = 4128
    logits = spread(vocab, 1)
    sampler, chosen = Sampler(vocab), SamplingSettings(temperature=1.0)
    observed = np.zeros(vocab, dtype=np.int64)
    rows = rows_for(chosen, 4000)
    for start in range(0, len(rows), 500):
        draw = sampler.sample(repeat(logits, 500), rows[start : start + 500])
        observed += np.bincount(np.array(draw.token), minlength=vocab)
    assert is_likely(observed, reference(logits, chosen))


def test_a_mask_and_the_draw_agree() -> None:
    vocab = 203
    allowed = np.random.default_rng(0).random(vocab) < 0.3
    logits, chosen = spread(vocab, 0), SamplingSettings(temperature=1.5)
    rows = [row._replace(words=words_of(allowed)) for row in rows_for(chosen, 10_000)]
    observed = np.bincount(
        np.array(Sampler(vocab).sample(repeat(logits, len(rows)), rows).token), minlength=vocab
    )
    assert is_likely(observed, reference(logits, chosen, allowed=allowed))
    assert observed[~allowed].sum() == 0


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("vocab", [33, 1000, 8192])
def test_a_greedy_row_takes_the_first_of_the_highest(dtype: mx.Dtype, vocab: int) -> None:
    logits = mx.round(logits_for(vocab, 9, dtype))
    rows = rows_for(SamplingSettings(), 9)
    draw = Sampler(vocab).sample(logits, rows)
    assert draw.exact is None
    assert draw.token.dtype == mx.int32
    assert listed(draw.token) == listed(mx.argmax(logits, axis=-1))
    assert listed(draw.token) == np.argmax(np.array(logits.astype(mx.float32)), -1).tolist()


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_sketch_is_the_token_that_is_drawn(dtype: mx.Dtype) -> None:
    sampler = Sampler(1000, xtc_special=SPECIAL)
    rows = mixed_rows(1000)
    rows += [row._replace(words=None) for row in rows]
    logits = logits_for(1000, len(rows), dtype)
    for i, row in enumerate(rows):
        own = logits[i : i + 1]
        assert listed(sampler.sketch(own, row)) == listed(sampler.sample(own, [row]).token)


def test_a_cold_row_and_a_row_with_top_k_1_are_greedy() -> None:
    logits = mx.array([[1.0, 5.0, 5.0, 2.0, -3.0]])
    sampler = Sampler(5)
    assert sampler.sample(logits, rows_for(SamplingSettings(), 1)).token.item() == 1
    top = rows_for(SamplingSettings(temperature=2, top_k=1), 300)
    drawn = sampler.sample(mx.broadcast_to(logits, (300, 5)), top).token
    assert set(listed(drawn)) == {1}
    for temperature in (1e-6, 1e-300, 5e-324):
        cold = rows_for(SamplingSettings(temperature=temperature), 300)
        drawn = sampler.sample(mx.broadcast_to(logits, (300, 5)), cold).token
        assert set(listed(drawn)) == {1, 2}  # both are the likeliest


@pytest.mark.parametrize("top_k", [5, 6, 10**12])
def test_top_k_at_or_over_the_vocabulary_is_off(top_k: int) -> None:
    logits = logits_for(5, 1)
    plain = Sampler(5).sample(logits, rows_for(SamplingSettings(temperature=1), 1))
    over = Sampler(5).sample(logits, rows_for(SamplingSettings(temperature=1, top_k=top_k), 1))
    assert_same(plain, over)


def test_xtc_applies_as_often_as_it_should_and_spares_its_tokens() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    chosen = SamplingSettings(temperature=1, xtc_probability=0.25, xtc_threshold=0.2)
    rows = rows_for(chosen, 10_000)
    for special in ([], [0]):
        draw = Sampler(4, xtc_special=special).sample(repeat(logits, len(rows)), rows)
        expected = 0.75 * reference(logits, chosen)
        expected += 0.25 * reference(logits, chosen, xtc=True, special=special)
        assert is_likely(np.bincount(np.array(draw.token), minlength=4), expected)


def test_only_rows_that_penalise_need_counts() -> None:
    sampler = Sampler(50)
    rows = rows_for(SamplingSettings(presence_penalty=1.0), 1)
    with pytest.raises(AssertionError, match="counts"):
        sampler.sample(logits_for(50, 1), rows)
    counts = counts_of([], [])
    empty = sampler.sample(logits_for(50, 1), [rows[0]._replace(counts=counts)])
    assert_same(empty, sampler.sample(logits_for(50, 1), rows_for(SamplingSettings(), 1)))


# Exactness


SETTINGS = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 1.0, 0.2, 0.9, 0.999]),
    top_k=st.sampled_from([0, 0, 3, 100, 127, 128, 129, 400]),
    min_p=st.sampled_from([0.0, 0.0, 0.001, 0.1]),
    top_n_sigma=st.sampled_from([-1.0, -1.0, 0.5, 2.0]),
    min_k=st.sampled_from([-1.0, -1.0, -1.0, 0.0, 40.0]),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.0, 0.001, 0.004, 0.008, 0.1, 0.5]),
)


@given(
    SETTINGS, st.sampled_from([0.0, 0.2, 1.0, 3.0]), st.sampled_from([0, 6, 60]), st.integers(0, 99)
)
@settings(max_examples=tries(150))
def test_a_draw_that_calls_itself_exact_is_the_one_from_the_whole_vocabulary(
    chosen: SamplingSettings, scale: float, levels: int, seed: int
) -> None:
    """Also with many equal logits, flat distributions and edges among equals."""
    vocab, rows = 640, rows_for(chosen, 8, seed)
    logits = np.stack([spread(vocab, 10 * seed + i, scale=scale) for i in range(8)])
    if levels:
        logits = (np.round(logits * levels / 6) * 6 / levels).astype(np.float32)
    sampler = Sampler(vocab, xtc_special=SPECIAL)
    fast = sampler.sample(mx.array(logits), rows, want=EVERYTHING)
    full = sampler.sample(mx.array(logits), rows, want=EVERYTHING, exact=True)
    exact = np.ones(8, bool) if fast.exact is None else np.array(fast.exact)
    assert full.exact is None or all(listed(full.exact))
    for name, array in fields_of(fast).items():
        if name != "exact":
            assert np.array_equal(np.array(array)[exact], np.array(fields_of(full)[name])[exact])
    assert full.prob is not None
    for i, row in enumerate(rows):
        expected, sure = reference_and_whether_sure(
            logits[i], chosen, xtc=excludes(row), special=SPECIAL
        )
        if sure:
            assert np.isclose(listed(full.prob)[i], expected[listed(full.token)[i]], rtol=1e-3)
            kept = np.count_nonzero(expected > 1e-30)
            shown = np.count_nonzero(np.array(full.candidate_probs)[i] > 1e-30)
            assert shown == min(kept, CANDIDATES)


def test_a_nucleus_beyond_the_candidates_is_flagged_and_drawn_exactly_on_request() -> None:
    vocab = 2000
    flat, peaked = np.zeros(vocab, np.float32), spread(vocab, 0, scale=8)
    sampler, chosen = Sampler(vocab), SamplingSettings(temperature=1.0, top_p=0.5)
    logits = mx.array(np.stack([flat, peaked]))
    draw = sampler.sample(logits, rows_for(chosen, 2))
    assert draw.exact is not None
    assert listed(draw.exact) == [False, True]
    rows = rows_for(chosen, 4000)
    observed = np.zeros(vocab, dtype=np.int64)
    for start in range(0, len(rows), 500):
        full = sampler.sample(repeat(flat, 500), rows[start : start + 500], exact=True)
        observed += np.bincount(np.array(full.token), minlength=vocab)
    assert is_likely(observed.reshape(20, -1).sum(-1), np.full(20, 0.05))


def test_few_allowed_tokens_are_always_exact() -> None:
    vocab = 2000
    allowed = np.zeros(vocab, bool)
    allowed[::50] = True
    for options in ({"top_p": 0.999}, {"top_k": 100}, {"top_p": 1 - 1e-9}, {"top_k": 1999}):
        row = DrawRow(SamplingSettings(temperature=5, **options), 0, 0, words=words_of(allowed))
        draw = Sampler(vocab).sample(mx.zeros((1, vocab)), [row])
        assert draw.exact is not None
        assert draw.exact.item() is True


DRAWN = Method(draws=True)
TRUNCATED = Method(draws=True, truncates=True)
COMPLETE = TRUNCATED._replace(complete=True)


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ({}, Method()),
        ({"top_p": 0.5, "top_k": 3}, Method()),
        ({"temperature": 1}, DRAWN),
        ({"temperature": 1, "top_k": 1000}, DRAWN),
        ({"temperature": 1, "min_p": 0.1}, DRAWN),
        ({"temperature": 1, "min_p": 0.1, "xtc_probability": 0.1}, DRAWN),
        ({"temperature": 1, "top_k": 127}, TRUNCATED),
        ({"temperature": 1, "top_k": 128}, COMPLETE),
        ({"temperature": 1, "min_p": 0.1, "top_k": 500}, TRUNCATED),
        ({"temperature": 1, "top_p": 0.9}, TRUNCATED),
        ({"temperature": 1, "top_k": 5, "xtc_probability": 0.1}, TRUNCATED),
        ({"temperature": 1, "top_k": 500, "xtc_probability": 0.1}, COMPLETE),
    ],
)
def test_rows_are_given_the_least_work_they_need(options: dict[str, Any], method: Method) -> None:
    found = Method.of(SamplingSettings(**options), 1000)
    assert found == method._replace(excludes="xtc_probability" in options)


def test_positions_of_one_sequence_are_rows() -> None:
    vocab = 300
    chosen = SamplingSettings(temperature=0.9, top_p=0.9, frequency_penalty=0.5)
    counts = counts_of([1, 2], [3])
    rows = []
    for position, drafted in enumerate([7, 7, 8]):
        rows.append(DrawRow(chosen, 1, position, counts=counts.fork()))
        counts.advance(drafted)
    logits = logits_for(vocab, 3)
    probs = np.array(final_distribution(logits, rows))
    for i in range(3):
        expected = reference(
            np.array(logits[i]), chosen, prompt=[1, 2], generated=[3, 7, 7][: i + 1]
        )
        assert np.allclose(probs[i], expected, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize(("vocab", "kinds"), [(640, [0, 7]), (8224, [1])])
def test_compiled_draws_are_those_of_the_plain_operations(
    vocab: int, kinds: list[int], compiled: None
) -> None:
    del compiled
    rows = [mixed_rows(vocab)[i] for i in kinds]
    logits = logits_for(vocab, len(rows))
    fast = Sampler(vocab).sample(logits, rows)
    mx.eval(fast)
    mx.disable_compile()
    plain = Sampler(vocab).sample(logits, rows)
    mx.eval(plain)
    mx.enable_compile()
    assert listed(fast.token) == listed(plain.token)


def test_nothing_is_evaluated_and_all_is_submitted_at_once() -> None:
    sampler, rows = Sampler(1000), mixed_rows(1000)
    draw = sampler.sample(logits_for(1000, len(rows)), rows, want=EVERYTHING)
    mx.async_eval(draw)
    assert draw.token.shape == (len(rows),)
