"""What is measured of drafts: the same texts with and without, and all costs on the same clock."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks import drafts
from benchmarks.drafts import DEVICE, SHAPE, Reciting, Workload
from benchmarks.simulate import SimulatedModel

from mlxgen import LanguageModel, load

TEXT = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16] * 3


def reciting(*texts: list[int]) -> Workload:
    lm = LanguageModel(Reciting(), load().tokenizer)
    jobs = [drafts.reciting([5, 6, *TEXT[:10], 5], text) for text in texts]
    return Workload("recited", lm, jobs)


def test_a_text_is_recited_whatever_is_drafted() -> None:
    work = reciting(TEXT, TEXT[::-1])
    for job, text in zip(work.jobs, (TEXT, TEXT[::-1]), strict=True):
        work.lm.model.recite(job)
        draft: Any
        for draft in ("off", "auto"):
            said = work.lm.generate(job.prompt, temperature=0, draft=draft, **job.options)
            assert list(said.tokens) == text
    assert drafts.drafted(work).tokens == [30, 30]


def test_what_changes_in_a_copy_is_little_and_most_of_it_is_as_it_was() -> None:
    copying, rewriting, _ = drafts.recitals()
    for recital in (*copying.jobs, *rewriting.jobs):
        trigrams = set(zip(recital.prompt, recital.prompt[1:], recital.prompt[2:], strict=False))
        text = recital.text
        said = list(zip(text, text[1:], text[2:], strict=False))
        assert 0.5 < sum(each in trigrams for each in said) / len(said) < 1


def test_a_simulated_device_takes_what_passes_take_and_less_with_drafts_that_stand() -> None:
    work = reciting(TEXT)
    seconds = drafts.drafted(work, SimulatedModel(DEVICE, SHAPE, work.lm), draft="off").seconds
    assert seconds == pytest.approx(29 * SHAPE.seconds(DEVICE, 1, 1, 30), rel=0.05)
    ratio, found = drafts.simulated(work)
    assert ratio > 1.5 and found.passes < 20
    assert found.tokens == [len(TEXT)]


@pytest.mark.parametrize("number", [0, 2], ids=["copying", "arithmetic"])
def test_drafts_that_choose_themselves_give_what_was_wanted(number: int) -> None:
    work = drafts.recitals()[number]
    times, _ = drafts.simulated(work)
    assert times >= work.target
