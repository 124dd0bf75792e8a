"""The sampler: rows are alone, are drawn with their probabilities, and exactly."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
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
)

from ..effort import tries
from .reference import (
    EVERYTHING,
    MIXED,
    SETTINGS,
    SPECIAL,
    UNCHANGED,
    assert_same,
    changes_of,
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


@pytest.mark.parametrize("vocab", [100, 8224, 12_001])
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


def test_a_draw_depends_on_the_values_of_settings_seed_position_and_attempt() -> None:
    sampler, logits = Sampler(1000), spread(1000, 0)
    tokens = set()
    for _ in range(100):  # the ids of settings are used again, as each is dropped
        row = DrawRow(SamplingSettings(temperature=0.8, top_k=30), 5, 5)
        tokens.add(sampler.sample(repeat(logits, 1), [row]).token.item())
    assert len(tokens) == 1
    warm = SamplingSettings(temperature=3.0)
    rows = [DrawRow(warm, s, p, a) for s in range(3) for p in range(3) for a in range(3)]
    assert len(set(listed(sampler.sample(repeat(logits, len(rows)), rows).token))) > 20


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
    changes = changes_of(chosen, [1, 2, 3], [4, 4, 5])
    target = options.get("adaptive_target")
    rows = [row._replace(changes=changes, target=target) for row in rows_for(chosen, 6000)]
    draw = Sampler(vocab).sample(repeat(logits, len(rows)), rows, exact=True)
    observed = np.bincount(np.array(draw.token), minlength=vocab)
    given_: dict[str, Any] = {"prompt": [1, 2, 3], "generated": [4, 4, 5], "target": target}
    p = chosen.xtc_probability
    expected = (1 - p) * reference(logits, chosen, **given_)
    expected += p * reference(logits, chosen, **given_, xtc=True)
    assert observed[expected == 0].sum() == 0
    assert is_likely(observed, expected)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_a_greedy_row_takes_the_first_of_the_highest(dtype: mx.Dtype) -> None:
    logits = mx.round(logits_for(1000, 9, dtype))
    draw = Sampler(1000).sample(logits, rows_for(SamplingSettings(), 9))
    assert draw.token.dtype == mx.int32
    assert listed(draw.token) == np.argmax(np.array(logits.astype(mx.float32)), -1).tolist()


def test_the_ends_of_ranges_mean_what_they_say() -> None:
    logits = mx.broadcast_to(mx.array([[1.0, 5.0, 5.0, 2.0, -3.0]]), (300, 5))
    sampler = Sampler(5)

    def drawn(**options: Any) -> list[int]:
        return listed(sampler.sample(logits, rows_for(SamplingSettings(**options), 300)).token)

    assert set(drawn(temperature=2, top_k=1)) == {1}
    for temperature in (1e-6, 1e-300, 5e-324):
        assert set(drawn(temperature=temperature)) == {1, 2}  # both are the likeliest
    for top_k in (5, 6, 10**12):  # as many as there are, or more
        assert drawn(temperature=1, top_k=top_k) == drawn(temperature=1)


def test_a_row_that_aims_tells_what_its_token_had_before() -> None:
    settings = SamplingSettings(temperature=0.9, top_k=20, adaptive_target=0.5)
    logits = spread(400, 0)
    rows = [row._replace(target=0.3) for row in rows_for(settings, 12)]
    draw = Sampler(400).sample(repeat(logits, 12), rows, want=Want(prob=True))
    assert draw.share is not None and draw.prob is not None
    before, after = (reference(logits, settings, target=target) for target in (None, 0.3))
    tokens = listed(draw.token)
    assert np.allclose(np.array(draw.share), before[tokens], rtol=1e-3)
    assert np.allclose(np.array(draw.prob), after[tokens], rtol=1e-3)


# Exactness


@given(
    SETTINGS, st.sampled_from([0.0, 0.2, 1.0, 3.0]), st.sampled_from([0, 6, 60]), st.integers(0, 99)
)
@settings(max_examples=tries(150))
def test_a_draw_that_calls_itself_exact_is_the_one_from_the_whole_vocabulary(
    chosen: SamplingSettings, scale: float, levels: int, seed: int
) -> None:
    """Also with many equal logits, flat distributions and edges among equals."""
    chosen = replace(chosen, **UNCHANGED)
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
        few, whole = (np.array(each)[exact] for each in (array, fields_of(full)[name]))
        if name == "candidates":  # those of nearly equal probability may change places
            few, whole = np.sort(few), np.sort(whole)
        if name != "exact":
            np.testing.assert_allclose(few, whole, rtol=1e-5, atol=1e-7)
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


FLAT, FEW = np.zeros(2000, np.float32), np.arange(2000) % 50 == 0
STEADY = np.linspace(2, 0, 2000).astype(np.float32)
TOP_CHOICES = {"temperature": 1, "xtc_probability": 1.0, "xtc_threshold": 0.0078, "top_k": 3}


@pytest.mark.parametrize(
    ("options", "logits", "allowed", "exact"),
    [
        ({}, FLAT, None, None),
        ({"temperature": 1}, FLAT, None, None),
        ({"temperature": 1, "min_p": 0.1, "xtc_probability": 0.1}, FLAT, None, None),
        ({"temperature": 1, "top_p": 0.5}, FLAT, None, False),
        ({"temperature": 1, "top_p": 0.5}, spread(2000, 0, scale=8), None, True),
        ({"temperature": 1, "top_k": 128}, FLAT, None, True),
        ({**TOP_CHOICES, "min_p": 0.001}, STEADY, None, False),  # of 128 shares only, some are top
        ({"temperature": 5, "top_p": 0.999}, FLAT, FEW, True),
        ({"temperature": 5, "top_p": 1 - 1e-9}, FLAT, FEW, True),
        ({"temperature": 5, "top_k": 1999}, FLAT, FEW, True),
    ],
)
def test_a_row_that_may_need_more_than_the_likeliest_tokens_says_whether_it_did(
    options: dict[str, Any],
    logits: npt.NDArray[np.float32],
    allowed: npt.NDArray[np.bool_] | None,
    exact: bool | None,
) -> None:
    words = None if allowed is None else words_of(allowed)
    row = DrawRow(SamplingSettings(**options), 0, 0, words=words)
    draw = Sampler(2000).sample(mx.array(logits)[None], [row])
    assert (draw.exact is None) if exact is None else (draw.exact is not None)
    assert draw.exact is None or draw.exact.item() is exact


@pytest.mark.parametrize(("vocab", "kinds"), [(640, [0, 7, 13]), (8224, [1])])
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


BROKEN = {"all nan": (slice(None), np.nan), "nan": (25, np.nan), "negative nan": (-1, -np.nan)}
BROKEN |= {"inf": (3, np.inf), "all -inf": (slice(None), -np.inf), "no token allowed": (0, 0.0)}


@pytest.mark.parametrize("filling", BROKEN)
@pytest.mark.parametrize(("vocab", "exact"), [(50, False), (640, True), (8192, False)])
def test_logits_that_allow_no_draw_give_no_token(filling: str, vocab: int, exact: bool) -> None:
    """Token -1, for every kind of row, and the rest of the batch does not notice."""
    rows = [row._replace(words=None) for row in mixed_rows(vocab)]
    good = logits_for(vocab, len(rows))
    sampler, (place, value) = Sampler(vocab), BROKEN[filling]
    healthy = listed(sampler.sample(good, rows, exact=exact).token)
    assert min(healthy) >= 0
    for victim, row in enumerate(rows):
        bad, asked = np.array(good), list(rows)
        bad[victim][place] = value
        if filling == "no token allowed":
            asked[victim] = row._replace(words=words_of(np.zeros(vocab, bool)))
        draw = sampler.sample(mx.array(bad), asked, want=EVERYTHING, exact=exact)
        assert listed(draw.token) == [*healthy[:victim], -1, *healthy[victim + 1 :]]
        assert draw.exact is not None
        assert draw.exact[victim].item() is True  # another draw would not help
        if filling == "no token allowed":
            assert draw.candidates is not None and draw.candidate_probs is not None
            assert set(listed(draw.candidates[victim])) == {-1}
            assert set(listed(draw.candidate_probs[victim])) == {0.0}


# Reports


@pytest.mark.parametrize(("vocab", "dtype"), [(90, mx.bfloat16), (8200, mx.float32)])
def test_reports_are_those_of_the_final_distribution_and_of_the_model(
    vocab: int, dtype: mx.Dtype
) -> None:
    rows, logits = mixed_rows(vocab), logits_for(vocab, len(MIXED), dtype)
    sampler = Sampler(vocab, xtc_special=SPECIAL)
    draw = sampler.sample(logits, rows, want=EVERYTHING, exact=True)
    final = np.array(sampler.distribution(logits, rows))
    logits = logits.astype(mx.float32)
    own = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    given = {name: np.array(array) for name, array in fields_of(draw).items()}
    for i, token in enumerate(given["token"]):
        assert np.isclose(given["prob"][i], final[i, token], rtol=1e-3)
        ids, probs = given["candidates"][i], given["candidate_probs"][i]
        count = int(np.sum(final[i] > 1e-30))
        assert np.all(np.diff(probs) <= 0)
        assert np.all(ids[: min(count, CANDIDATES, vocab)] >= 0)
        assert np.all((ids < vocab) & ((ids >= 0) == (probs > 0)))
        assert np.allclose(probs[ids >= 0], final[i, ids[ids >= 0]], rtol=1e-3, atol=1e-9)
        if count <= CANDIDATES:
            assert np.isclose(probs.sum(), 1, atol=1e-5) and token in ids
        assert np.isclose(given["logprob"][i], own[i, token], atol=2e-5)
        order = np.lexsort((np.arange(vocab), -np.array(logits[i])))[:5]
        assert given["top_tokens"][i].tolist() == order.tolist()
        assert np.allclose(given["top_logprobs"][i], own[i, order], atol=2e-5)


def test_only_what_is_wanted_is_there() -> None:
    sampler, logits, rows = Sampler(90), logits_for(90, 16), mixed_rows(90)[:16]
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


@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([20, 160, 8224, 16_384]))
@settings(max_examples=tries(60))
def test_the_likeliest_are_found_best_first_and_equals_by_id(
    seed: int, levels: int, vocab: int
) -> None:
    """Which of those equal to the last one are among them is undefined."""
    rng = np.random.default_rng(seed)
    logits = rng.integers(-levels, levels, (2, vocab)).astype(np.float32)
    logits[:, rng.integers(0, vocab, vocab // 3)] = -np.inf
    logits[:, rng.integers(0, vocab, 5)] = -0.0  # equal to 0
    rows, want = rows_for(SamplingSettings(), 2), Want(top=CANDIDATES)
    draw = Sampler(vocab).sample(mx.array(logits), rows, want=want)
    assert draw.top_tokens is not None
    for row, ids in zip(logits, np.array(draw.top_tokens), strict=True):
        order = np.lexsort((np.arange(vocab), -row))[: min(CANDIDATES, vocab)]
        sure = row[order] > row[order][-1]
        assert np.array_equal(ids[sure], order[sure])
        assert np.array_equal(np.lexsort((ids, -row[ids])), np.arange(len(ids)))
        assert np.array_equal(row[ids], row[order]) and len(set(ids)) == len(ids)


# Compiled programs


def test_each_program_meets_one_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What MLX keeps for a function grows with the shapes that it meets."""
    met: list[set[Any]] = []

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        shapes: set[Any] = set()
        met.append(shapes)

        def recording(*inputs: Any) -> Any:
            shapes.add(
                tuple((tuple(each.shape), str(each.dtype)) for each in inputs if each is not None)
            )
            return function(*inputs)

        return recording

    monkeypatch.setattr("mlxgen.sampling.sampler.mx.compile", compile)
    sampler = Sampler(200, xtc_special=SPECIAL)
    dice, rows, logits = random.Random(1), mixed_rows(200), logits_for(200, len(MIXED))
    draw = sampler.sample(logits, rows)
    for _ in range(200):
        chosen = [dice.randrange(len(rows)) for _ in range(dice.randrange(1, 20))]
        tokens = range(dice.randrange(1, 200))
        some = [
            rows[i]._replace(changes=changes_of(rows[i].settings, tokens, [1, 2])) for i in chosen
        ]
        want = Want(candidates=dice.choice((0, 128)), top=dice.randrange(20))
        exact = dice.random() < 0.1
        sampler.sample(logits[mx.array(chosen)], some, want=want, exact=exact)
    assert_same(sampler.sample(logits, rows), draw)  # by programs that are made again
    assert all(len(shapes) == 1 for shapes in met)
