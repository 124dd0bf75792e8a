"""What is measured of calls, drafts, prefixes on disk, and a server under load, on small models."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks import calls, drafts, prefix, soak
from benchmarks.drafts import DEVICE, SHAPE, Reciting, Workload
from benchmarks.kit import DRAFT
from benchmarks.servers import Server
from benchmarks.simulate import SimulatedModel

from mlxgen import LanguageModel, load
from tests.fakes.paces import Still

TEXT = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16] * 3


def test_no_token_costs_more_calls_than_before() -> None:
    over = {}
    for name, case, _, most, _ in calls.cases():
        case.lm.runtime.pace = Still()  # so that what is drafted does not follow the clock
        each = 40 if "drafts" in name or "schema" in name else 12
        found = calls.count(case.ours(), case.rows, each=each)
        if found.calls > most:  # lower what is allowed with what is counted
            over[name] = round(found.calls, 1), found.most[:8]
    assert not over


def test_only_calls_of_the_package_are_counted() -> None:
    def tokens() -> Generator[int, None, None]:
        while True:
            yield len(["a", "c"])

    assert calls.count(tokens(), 1, __file__).calls == 1
    assert calls.count(tokens(), 1).calls == 0


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


@pytest.mark.slow
def test_what_is_restored_is_compared_with_what_is_run(tmp_path: Path) -> None:
    found = prefix.on_disk("tiny", tmp_path, 2, 600)
    assert found.nbytes == 600 * 2 * 2 * 2 * 32 * 4  # layers, keys and values, heads, floats
    assert found.beside.low > 0 and found.first.ours.median > 0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mlxgen", ("--draft", DRAFT, "--cache-bytes", "32MiB")) as process:
        yield process


@pytest.mark.slow
def test_mixed_requests_get_what_is_right_for_them(server: Server) -> None:
    found = soak.soak(server, 60, clients=6)
    assert found.unexpected == []
    assert [text for text in found.differing if " for seeded " not in text] == []
    assert found.requests == 60 and found.probes > 10
    assert len(found.memory) == 2 and found.growth > -50


@pytest.mark.slow
@pytest.mark.parametrize("name", ["128 answers", "pieces of 900 kB"])
def test_small_requests_are_answered_beside_large_ones(server: Server, name: str) -> None:
    (asked,) = [asked for case, asked in soak.LARGE.items() if name in case]
    assert soak.held_up(server, *asked) > 0
