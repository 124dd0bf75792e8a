"""The sampler: rows are alone, are drawn with their probabilities, and exactly."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
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
from mlxgen.sampling.candidates import best
from mlxgen.sampling.sampler import KEPT

from ..effort import tries
from .reference import (
    EVERYTHING,
    MIXED,
    SPECIAL,
    assert_same,
    counts_of,
    excludes,
    fields_of,
    is_likely,
    listed,
    logits_for,
    mixed_rows,
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


@pytest.mark.parametrize(
    "options",
    [{}, {"min_p": 0.05}, {"top_k": 20}, {"top_p": 0.9}, {"xtc_probability": 1.0, "top_k": 30}],
    ids=str,
)
def test_tokens_near_the_target_are_preferred(options: dict[str, Any]) -> None:
    vocab, target = 400, 0.3
    logits = np.stack([spread(vocab, seed) for seed in range(12)])
    plain = SamplingSettings(temperature=0.9, xtc_threshold=0.05, **options)
    chosen = SamplingSettings(temperature=0.9, xtc_threshold=0.05, adaptive_target=0.5, **options)
    rows = [DrawRow(chosen, seed, 3, target=target) for seed in range(12)]
    want = Want(prob=True, candidates=128)
    draw = Sampler(vocab).sample(mx.array(logits), rows, want=want, exact=True)
    assert draw.share is not None and draw.prob is not None
    assert draw.candidates is not None and draw.candidate_probs is not None
    whole = np.array(final_distribution(mx.array(logits), rows))
    for i in range(12):
        before = reference(logits[i], plain, xtc="xtc_probability" in options)
        distance = np.abs(before - target) / 0.2
        weights = np.where(before > 0, np.exp(-10 * distance**2 / (1 + distance)), 0.0)
        expected, token = weights / weights.sum(), int(np.array(draw.token)[i])
        assert np.allclose(whole[i], expected, atol=1e-4)
        assert np.array(draw.share)[i] == pytest.approx(before[token], rel=1e-3)
        assert np.array(draw.prob)[i] == pytest.approx(expected[token], rel=1e-3)
        shown = np.array(draw.candidate_probs)[i]
        assert shown[0] == pytest.approx(expected.max(), rel=1e-3)
        assert (np.diff(shown) <= 1e-6).all()


def test_rows_that_aim_and_others_share_a_batch() -> None:
    logits = logits_for(200, 4)
    aims = SamplingSettings(temperature=1.0, top_k=10, adaptive_target=0.2)
    rows = rows_for(SamplingSettings(temperature=1.0, top_k=10), 4)
    rows[1::2] = [row._replace(settings=aims, target=0.2) for row in rows[1::2]]
    sampler = Sampler(200)
    together = listed(sampler.sample(logits, rows).token)
    alone = [sampler.sample(logits[i : i + 1], rows[i : i + 1]).token.item() for i in range(4)]
    assert together == alone


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


def test_only_rows_that_may_need_more_than_the_likeliest_tokens_say_whether_they_did() -> None:
    whole: list[dict[str, Any]] = [
        {},
        {"temperature": 1},
        {"temperature": 1, "min_p": 0.1, "xtc_probability": 0.1},
    ]
    some: list[dict[str, Any]] = [
        {"temperature": 1, "top_p": 0.9},
        {"temperature": 1, "top_k": 128},
    ]
    flat = mx.zeros((1, 1000))
    for options in whole:
        chosen = SamplingSettings(**options)
        assert Sampler(1000).sample(flat, rows_for(chosen, 1)).exact is None
    exact = [Sampler(1000).sample(flat, rows_for(SamplingSettings(**o), 1)).exact for o in some]
    assert [listed(each) for each in exact if each is not None] == [[False], [True]]


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


# The likeliest tokens


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


# Compiled programs


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
            shapes.add(tuple((tuple(each.shape), str(each.dtype)) for each in inputs))
            return function(*inputs)

        return recording

    monkeypatch.setattr("mlxgen.sampling.sampler.mx.compile", compile)
    sampler = Sampler(200, xtc_special=SPECIAL)
    rows, first = mixed_rows(200), logits_for(200, len(MIXED))
    draw = sampler.sample(first, rows)
    for logits, others, want, exact in batches(200, 300):
        sampler.sample(logits, others, want=want, exact=exact)
        assert len(sampler._programs) <= KEPT
    assert len(sampler._programs) == KEPT
    assert_same(sampler.sample(first, rows), draw)  # by programs that are made again
    assert all(len(shapes) == 1 for shapes in met)


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
