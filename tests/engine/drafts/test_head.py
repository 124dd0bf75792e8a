"""What is drafted from hidden states changes nothing, and is drafted from the right ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import mlxgen
from mlxgen import LanguageModel
from mlxgen.engine.drafts.head import BEHIND, HeadDrafter
from mlxgen.engine.limits import Limits
from mlxgen.engine.options import Options
from mlxgen.engine.scheduling.scheduler import Scheduler
from tests.fakes.architectures import KINDS, VOCAB, of_kind
from tests.fakes.mirror import Mirror, check_entries, draft_with_head

from ...effort import tries

PROMPT = [t % VOCAB for t in b"ababcbabcabab"]
GREEDY: dict[str, Any] = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}


def mirrored(kind: str) -> LanguageModel:
    """A model with a head that shows what it is told."""
    lm = of_kind(kind)
    lm.runtime.predictor = Mirror(64, VOCAB, lm.model)  # type: ignore[assignment]
    draft_with_head(lm)
    return lm


@pytest.fixture(scope="module", params=KINDS)
def lm(request: pytest.FixtureRequest) -> LanguageModel:
    return mirrored(request.param)


@pytest.fixture
def demo() -> Iterator[LanguageModel]:
    lm = mlxgen.load()
    draft_with_head(lm)
    yield lm
    del lm.runtime.drafts_for


@pytest.mark.parametrize("seed", range(tries(16)))
def test_random_ways_back_and_forks_keep_each_entry_with_its_state(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(lm.runtime, "drafts_for", lm.runtime.drafts_for)  # the fixture's comes back
    draft_with_head(lm, 1 + seed % 6)

    def told(draft: str) -> list[tuple[int, ...]]:
        moves = random.Random(seed)
        streams = [lm.stream(PROMPT[: moves.randrange(1, 14)], **GREEDY, draft=draft)]
        for _ in range(moves.randrange(1, 8)):
            stream = moves.choice(streams)
            for _ in range(moves.randrange(9)):
                next(stream, None)
            stream.rewind(tokens=min(moves.randrange(9), len(stream.tokens)))
            if moves.random() < 0.3:
                streams += stream.fork()
            for each in streams if draft == "auto" else ():
                check_entries(lm, each._handle.drafts, list(each._handle.history))
        for stream in streams:
            for _ in stream:
                pass
        return [tuple(stream.tokens) for stream in streams]

    assert told("auto") == told("off")


def test_rows_of_a_batch_have_entries_of_their_own(lm: LanguageModel) -> None:
    plain = [lm.generate(PROMPT[i:], draft="off", **GREEDY).tokens for i in range(4)]
    scheduler = Scheduler(lm.runtime, Limits(keep_prefixes=False))
    given: list[dict[str, Any]] = [{}, {"draft": "off"}, {}, {}]
    handles = [
        scheduler.submit(lm.runtime.prepare(PROMPT[i:], Options.of({**GREEDY, **own})))
        for i, own in enumerate(given)
    ]
    checked = [0] * 4
    while scheduler.busy:
        assert all(event.error is None for event in scheduler.step())
        for i, handle in enumerate(handles):
            if handle.drafts.drafters and not handle.closed and scheduler.stats().steps % 4 == 0:
                checked[i] = check_entries(lm, handle.drafts, list(handle.history))
    assert [tuple(handle.request.tokens) for handle in handles] == plain
    assert all(count > len(PROMPT) for i, count in enumerate(checked) if i != 1)


def test_what_runs_without_drafts_is_read_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = mirrored("plain")
    monkeypatch.setattr(HeadDrafter, "propose", lambda *_: None)
    stream = lm.stream(PROMPT * 3, max_tokens=2 * BEHIND, temperature=0, ignore_eos=True)
    for length, _ in enumerate(stream, len(PROMPT * 3)):
        drafts = stream._handle.drafts
        (drafter,) = drafts.drafters
        assert isinstance(drafter, HeadDrafter)
        assert length - drafter._kv.length <= 2 * BEHIND
    assert check_entries(lm, drafts, list(stream._handle.history)) > BEHIND + len(PROMPT)


def test_without_the_states_of_a_kept_prefix_it_begins_after_them(demo: LanguageModel) -> None:
    prompt = "Once upon a time there was a little dog. He had a red ball and a friend."
    given: dict[str, Any] = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}
    with demo.stream(prompt, **given) as stream:
        first = [chunk.token for chunk in stream]
        stream.keep()
    again = demo.stream(prompt, **given)
    assert [chunk.token for chunk in again] == first and again.usage.cached_tokens > 0
    (drafter,) = again._handle.drafts.drafters
    assert isinstance(drafter, HeadDrafter) and drafter._base > 0
    assert again.usage.accepted_draft_tokens > 20


@pytest.mark.parametrize("filters", [None, mlxgen.Regex("(.|\n)*")], ids=["free", "constrained"])
def test_the_demo_models_head_saves_half_of_the_passes(demo: LanguageModel, filters: Any) -> None:
    given: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "filters": filters}
    given |= {"temperature": 0.7, "seed": 1}
    plain = demo.generate("Once upon a time", draft="off", **given)
    drafted = demo.generate("Once upon a time", **given)
    assert drafted.tokens == plain.tokens
    assert drafted.usage.forward_passes < 30
    assert set(drafted.usage.drafts) == {"head"}
