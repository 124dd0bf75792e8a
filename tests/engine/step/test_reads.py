"""What the host reads of a step was submitted with its draw, so that it waits for nothing else.

A look-ahead is on the device by then: what is sliced or computed only afterwards, even a single
number, would be ready after it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import PostSamplingResult
from mlxgen.engine.kv.held import Later
from mlxgen.engine.limits import Limits
from mlxgen.engine.options import Options
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.engine.step.drawn import Drawn, DrawnView
from mlxgen.engine.step.step import Loop
from mlxgen.sampling import CANDIDATES, DrawRow, Sampler, SamplingSettings, Want

from ...effort import tries

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8]


class Watch:
    """While ``on``, notes as ``wrong`` where something is read that was not submitted before the
    look-ahead; an error would be taken for the model's. ``aheads`` and ``reads`` count."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._submitted: list[mx.array] = []
        self._due: set[int] | None = None  # what was submitted before the look-ahead that is out
        self.on = False
        self.wrong: list[str] = []
        self.aheads = self.reads = 0
        self._before(mx, "async_eval", self._submits)
        self._before(Sampler, "sample", lambda _, logits, *__, **___: self._submits(logits))
        for owner, name in ((mx.array, "tolist"), (np, "array"), (np, "asarray")):
            self._before(owner, name, self._converts)
        self._before(np, "frombuffer", lambda view, *_: self._converts(view.obj))
        looks, steps = Loop._look_ahead, Loop.step

        def look(*args: Any) -> Any:
            due = set(map(id, self._submitted))
            found = looks(*args)
            self._due, self.aheads = due, self.aheads + self.on
            return found

        def whole(*args: Any) -> None:
            steps(*args)
            self._due = None

        self._patch.setattr(Loop, "_look_ahead", look)
        self._patch.setattr(Loop, "step", whole)

    def _before(self, owner: Any, name: str, see: Callable[..., None]) -> None:
        plain = getattr(owner, name)

        def seen(*args: Any, **options: Any) -> Any:
            see(*args)
            return plain(*args, **options)

        self._patch.setattr(owner, name, seen)

    def _submits(self, *arrays: Any) -> None:
        for each in arrays:
            if isinstance(each, mx.array):
                self._submitted.append(each)
            elif isinstance(each, (list, tuple)):
                self._submits(*each)

    def _converts(self, array: Any, *_: Any) -> None:
        if self.on and isinstance(array, mx.array):
            due = set(map(id, self._submitted)) if self._due is None else self._due
            if id(array) not in due:
                self.wrong.append("".join(traceback.format_stack(limit=6)))
            self.reads += 1


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def look_at_all(result: PostSamplingResult) -> None:
    logits = result.logits
    assert logits is not None and logits.dtype == np.float32
    assert result.candidate_probs[0] > 0 and result.sampled_prob > 0


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_p": 0.9, "top_logprobs": 20},
    {"temperature": 0.7, "top_logprobs": 0},
    {"top_candidates": 5, "top_logprobs": 3},
    {"temperature": 1.0, "hooks": look_at_all},
    {"hooks": look_at_all, "top_candidates": 5, "filters": mlxgen.Regex("(.|\n)*")},
]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_step_reads_only_what_was_submitted_with_its_draw(watch: Watch, dtype: mx.Dtype) -> None:
    lm = mlxgen.load()
    lm.model.set_dtype(dtype)
    scheduler = Scheduler(lm.runtime, Limits(keep_prefixes=False))
    handles = []
    for seed, options in enumerate(OPTIONS):
        given = {"max_tokens": None, "seed": seed, "ignore_eos": True, "draft": "off"}
        made = Options.of(given | options)
        handles.append(scheduler.submit(lm.runtime.prepare(PROMPT, made)))
    while any(handle.request.position < 2 for handle in handles):
        scheduler.step()
    watch.on = True
    for _ in range(12):
        scheduler.step()
    assert not watch.wrong, watch.wrong[0]
    assert watch.aheads == 12 and watch.reads >= 12


@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_drafts_are_read_as_they_were_submitted(watch: Watch, draft: str) -> None:
    lm = mlxgen.load()
    by: Any = mlxgen.load() if draft == "model" else draft
    with lm.stream(PROMPT, max_tokens=32, draft=by, top_logprobs=5, ignore_eos=True) as stream:
        next(stream), next(stream)
        watch.on = True
        drafted = [chunk.from_draft for chunk in stream]
    assert any(drafted)
    assert not watch.wrong, watch.wrong[0]
    assert watch.reads


# ---- what is seen of a draw, compared with its distribution -------------------------------------

VOCAB = 300  # more than the candidates, so that flat kinds_of_rows are drawn again
SAMPLER = Sampler(VOCAB)
SAMPLED = [
    SamplingSettings(temperature=0),
    SamplingSettings(temperature=1.0),
    SamplingSettings(temperature=0.7, top_p=0.9),
]
WANTS = [Want(), Want(prob=True, candidates=CANDIDATES, logprob=True, top=5)]

kinds_of_rows = st.lists(
    st.tuples(st.sampled_from(SAMPLED), st.sampled_from([0.01, 8.0])), min_size=2, max_size=2
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
@given(kinds_of_rows, st.integers(0, 10_000), st.sampled_from(WANTS), st.integers(0, VOCAB - 1))
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
    flat, peaked = (SAMPLED[2], 0.01), (SAMPLED[2], 8.0)
    drawn, logits, draws = drawn_from([peaked, flat], 1, WANTS[1])
    drawn.tokens()
    assert list(drawn.redrawn) == [1]
    final = np.array(SAMPLER.distribution(mx.array(logits), draws))
    for row in range(2):
        view = DrawnView(drawn, row)
        np.testing.assert_allclose(view.probability(view.token), final[row, view.token], rtol=1e-4)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_logits_are_those_of_the_row_whatever_their_type(dtype: mx.Dtype) -> None:
    whole = (mx.arange(4 * VOCAB).reshape(4, VOCAB) / 7 - 50).astype(dtype)
    expected = np.array(whole.astype(mx.float32))
    draws = [DrawRow(SAMPLED[0], 1, position) for position in range(2)]
    for array, first in ((whole[2:], 2), (whole.reshape(2, 2, VOCAB)[:, 0], 0)):
        drawn = Drawn(SAMPLER, array, draws, Want())
        for row in range(2):
            seen = DrawnView(drawn, row).logits
            at = first + row if first else 2 * row
            np.testing.assert_array_equal(seen, expected[at])
