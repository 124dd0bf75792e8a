"""What is measured of drafts: the same texts with and without, and all costs on the same clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from benchmarks import recited, simulate
from benchmarks.recited import Recital, Reciting
from benchmarks.simulated import DEVICES, SHAPES, SMALL, Shape, SimulatedModel
from benchmarks.speculation import (
    Job,
    Workload,
    against_mlx_lm_on,
    drafted,
    simulated,
    workloads,
)

from mlxgen import LanguageModel, load

DEVICE, SHAPE = DEVICES[1], SHAPES[1]
SLOW = pytest.mark.slow
TEXT = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16] * 3


def reciting(*texts: list[int]) -> Workload:
    lm = LanguageModel(Reciting(), recited.tokenizer())
    options = {"ignore_eos": True}
    recitals = [Recital([5, 6, *TEXT[:10], 5], text) for text in texts]
    jobs = [Job(each.prompt, {**options, "max_tokens": len(each.text)}, each) for each in recitals]
    return Workload("recited", lm, jobs)


def test_a_text_is_recited_whatever_is_drafted() -> None:
    work = reciting(TEXT, TEXT[::-1])
    for job, text in zip(work.jobs, (TEXT, TEXT[::-1]), strict=True):
        work.lm.model.recite(job.recital)
        draft: Any
        for draft in ("off", "auto"):
            said = work.lm.generate(job.prompt, temperature=0, draft=draft, **job.options)
            assert list(said.tokens) == text
    assert drafted(work).tokens == [30, 30]


def test_what_changes_in_a_copy_is_little_and_most_of_it_is_as_it_was() -> None:
    for recital in (*recited.copying(), *recited.rewriting()):
        trigrams = set(zip(recital.prompt, recital.prompt[1:], recital.prompt[2:], strict=False))
        text = recital.text
        said = list(zip(text, text[1:], text[2:], strict=False))
        assert 0.5 < sum(each in trigrams for each in said) / len(said) < 1


def test_a_simulated_device_gives_the_same_text_faster_with_drafts_that_stand() -> None:
    ratio, found = simulated(reciting(TEXT), DEVICE, SHAPE)
    assert ratio > 1.5 and found.passes < 20
    assert found.tokens == [len(TEXT)]


def test_without_drafts_a_simulated_device_is_as_fast_as_with_mlx_lm() -> None:
    work = reciting(TEXT)
    seconds = drafted(work, SimulatedModel(DEVICE, SHAPE, work.lm), draft="off").seconds[0]
    plain = simulate.plain(DEVICE, SHAPE, len(work.jobs[0].prompt), len(TEXT) - 1)
    assert seconds == pytest.approx(plain, rel=0.01)
    assert plain == pytest.approx(29 * SHAPE.seconds(DEVICE, 1, 1, 30), rel=0.05)


def test_the_passes_of_a_draft_model_take_their_time_on_the_same_clock() -> None:
    work, seconds = reciting(TEXT), []
    for layers in (1, 28):
        lm = SimulatedModel(DEVICE, SHAPE, work.lm)
        small = Shape("small", 0.6e9, 4.5, layers, 16, 8)
        draft = SimulatedModel(DEVICE, small, work.lm, timeline=lm.timeline)
        found = drafted(work, lm, draft)
        assert found.drafts["model"][1] > 0
        seconds.append(found.seconds[0])
    assert seconds[1] > 1.05 * seconds[0]


def test_a_draft_model_is_about_as_fast_as_with_mlx_lm_on_a_simulated_device() -> None:
    assert 0.98 < against_mlx_lm_on(DEVICE, SHAPE, SMALL) < 1.1


def test_what_mlx_lm_does_with_drafts_takes_a_pass_for_each_that_is_wrong() -> None:
    def passes(stood: list[bool]) -> float:
        seconds = simulate.speculative(DEVICE, SHAPE, SMALL, 8, stood, 3)
        of_draft = SMALL.seconds(DEVICE, 1, 1, 8)
        return seconds / (SHAPE.seconds(DEVICE, 1, 4, 8) + 3 * of_draft)

    assert passes([False] * 12) == pytest.approx(12, rel=0.15)
    assert passes([True] * 12) == pytest.approx(3, rel=0.15)


def test_what_predicts_further_tokens_takes_the_time_of_a_layer_and_of_the_head() -> None:
    lm = load()
    assert lm.runtime.predictor is not None
    slow = SimulatedModel(DEVICE, SHAPE, lm)
    predictor, line = slow.runtime.predictor, slow.timeline
    assert predictor is not None
    states = predictor(mx.array([[5]]), mx.zeros((1, 1, predictor.width)), predictor.make_cache())
    layer = line.busy
    assert mx.allclose(predictor.logits(states), lm.runtime.predictor.logits(states))
    whole, head = SHAPE.seconds(DEVICE, 1, 1, 1), line.busy - layer
    assert whole / 40 < layer < whole / 15 and whole / 20 < head < whole / 10


@pytest.mark.parametrize("number", [1, 4, pytest.param(0, marks=SLOW), pytest.param(2, marks=SLOW)])
def test_drafts_that_choose_themselves_give_what_was_wanted(number: int) -> None:
    work = workloads()[number]
    times, _ = simulated(replace(work, jobs=work.jobs[:2]), DEVICE, SHAPE)
    assert work.target is not None and times >= work.target
