"""Forward passes for several handles, compared with one plain pass of each alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.engine.kv import KV, Slots
from mlxgen.engine.kv.commands import Run
from mlxgen.engine.options import Options
from mlxgen.engine.request.assembly import assemble
from mlxgen.engine.request.prompt import Prompt
from mlxgen.engine.step import passes as module
from mlxgen.engine.step.handle import Handle
from mlxgen.engine.step.pace import Clock, Pace
from mlxgen.engine.step.passes import PADDING, WIDEST, Passes, Work
from mlxgen.engine.step.runner import Runner
from mlxgen.tokens import Vocabulary
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import VOCAB, cache_kinds

from ...effort import tries

VOCABULARY = Vocabulary.of(alphabet_tokenizer())
BATCHED = ["plain", "quantised", "sliding window", "recurrent", "hybrid"]
_models: dict[str, Any] = {}


def loaded(kind: str) -> tuple[Any, Callable[[], list[Any]]]:
    if kind not in _models:
        _models[kind] = cache_kinds()[kind]()
    pair: tuple[Any, Callable[[], list[Any]]] = _models[kind]
    return pair


def passes_of(kind: str) -> Passes:
    model, make = loaded(kind)
    slots = Slots(make) if kind in BATCHED else None
    runner = Runner(model, make, slots)
    return Passes(runner, Clock(Pace(), runner))


def handle_of(passes: Passes, tokens: list[int]) -> Handle:
    checked = Options.of({"max_tokens": 64})
    prompt = Prompt(tuple(tokens), opens_text=False)
    request = assemble(prompt, checked, VOCABULARY, VOCAB, budget=64, seed=1)
    return Handle(request, KV(passes.runner))


def plain(kind: str, tokens: list[int], wanted: int) -> np.ndarray:
    """The last ``wanted`` logits of one pass over everything."""
    model, make = loaded(kind)
    return np.array(model(mx.array([tokens]), cache=make())[0, -wanted:])


def check(kind: str, handle: Handle, tokens: list[int], wanted: int) -> None:
    ahead = handle.ahead
    assert ahead is not None and len(ahead.places) == wanted
    assert ahead.length == len(tokens) - wanted + 1 and handle.kv.length == len(tokens)
    assert ahead.of(handle.history, handle.kv)
    got = np.array(ahead.array)[list(ahead.places)]
    np.testing.assert_allclose(got, plain(kind, tokens, wanted), rtol=2e-3, atol=2e-3)


lengths = st.tuples(st.integers(1, 40), st.integers(0, 20), st.integers(0, 3))
"""Of a sequence: tokens that are held, more that are pending, drafted ones."""


@pytest.mark.parametrize("kind", [*BATCHED, "chunked"])
def test_ragged_runs_give_what_each_would_give_alone(kind: str) -> None:
    @settings(max_examples=tries(80))
    @given(st.lists(lengths, min_size=1, max_size=4), st.integers(0, 1000))
    def law(sizes: list[tuple[int, int, int]], seed: int) -> None:
        dice = np.random.default_rng(seed)
        passes = passes_of(kind)
        work, expected = [], []
        for held, more, drafted in sizes:
            count = held + more + 1
            tokens = [int(t) for t in dice.integers(0, VOCAB, count + drafted)]
            handle = handle_of(passes, tokens[:count])
            handle.align()
            passes.prefill(handle, held)
            pending = handle.align()
            assert len(pending) == more + 1
            work.append(Work(handle, [*pending, *tokens[count:]], 1 + drafted))
            expected.append((handle, tokens, 1 + drafted))
        mx.eval(passes.run(work))
        while cut := [handle for handle, _, _ in expected if handle.ahead is None]:
            for handle in cut:
                handle.align()
            mx.eval(passes.run([Work.pending(handle) for handle in cut]))
        for handle, tokens, wanted in expected:
            check(kind, handle, tokens, wanted)

    law()


@pytest.mark.parametrize("kind", ["plain", "sliding window"])
def test_prompts_that_are_run_together_hold_what_each_would_hold_alone(kind: str) -> None:
    passes = passes_of(kind)
    dice = np.random.default_rng(3)
    prompts = [[int(t) for t in dice.integers(0, VOCAB, count)] for count in (9, 2, 1, 7)]
    handles = [handle_of(passes, tokens) for tokens in prompts]
    for handle in handles:
        handle.align()
    several = [handle for handle in handles if len(handle.pending) > 1]
    passes.prefill_together(several)
    assert [handle.kv.length for handle in several] == [8, 1, 6]
    for handle in handles:
        handle.align()
    waiting = [Work.pending(handle) for handle in handles]
    assert all(len(each.tokens) == 1 for each in waiting)  # the last ones go together
    mx.eval(passes.run(waiting))
    for handle, tokens in zip(handles, prompts, strict=True):
        check(kind, handle, tokens, 1)


def in_slots(passes: Passes, runs: list[int]) -> list[Work]:
    """Rows in slots with so many pending tokens each."""
    work = []
    for i, run in enumerate(runs):
        handle = handle_of(passes, [(3 * i + j) % VOCAB for j in range(5 + run)])
        handle.align()
        passes.prefill(handle, 5)
        handle.align()
        work.append(Work.pending(handle))
    return work


@pytest.mark.parametrize(
    ("runs", "made"),
    [
        ([1, 1, 1, 1], [[1, 1, 1, 1]]),
        ([1, 6, 2, 1], [[1, 6, 2, 1]]),  # little padding
        ([1, 8, 1, 1], [[1, 1, 1], [8]]),
        ([1, WIDEST + 9], [[1, WIDEST // 2]]),  # the rest of it goes through later
        ([1, 1, 5, 1, 1], [[1, 1, 1, 1, 1]]),  # more than a few rows go on token by token
    ],
)
def test_rows_with_runs_of_different_length_share_a_pass_if_that_is_little_padding(
    runs: list[int], made: list[list[int]]
) -> None:
    passes = passes_of("plain")
    work = in_slots(passes, runs)
    ran = noted(passes)
    arrays = passes.run(work)
    mx.eval(arrays)
    assert sorted(map(sorted, ran)) == sorted(map(sorted, made))
    missing = [each.handle.missing for each in work]
    assert sum(missing) == sum(runs) - sum(map(sum, made))
    assert [each.handle.ahead is None for each in work] == [count > 0 for count in missing]


def noted(passes: Passes) -> list[list[int]]:
    """How many tokens of each row the passes from now on run, pass by pass."""
    ran: list[list[int]] = []
    do = passes.runner.do

    def noting(command: Any) -> Any:
        if isinstance(command, Run):
            ran.append([len(tokens) for _, tokens in command.rows])
        return do(command)

    passes.runner.do = noting  # type: ignore[method-assign]
    return ran


@pytest.mark.parametrize(("drafted", "passes_made"), [(3, 1), (PADDING, 2)])
def test_drafts_are_verified_whole_beside_the_others_or_with_them(
    drafted: int, passes_made: int
) -> None:
    passes = passes_of("plain")
    work = in_slots(passes, [1, 1, 1])
    more = [5 + i for i in range(drafted)]
    work[1] = Work(work[1].handle, [*work[1].tokens, *more], 1 + drafted)
    ran = noted(passes)
    mx.eval(passes.run(work))
    assert len(ran) == passes_made
    check("plain", work[1].handle, [*work[1].handle.history, *more], 1 + drafted)
    for each in (work[0], work[2]):
        check("plain", each.handle, list(each.handle.history), 1)


@pytest.mark.parametrize("kind", ["plain", "sliding window"])
def test_the_last_piece_of_a_prompt_gives_the_logits_if_its_cache_can_go_back(kind: str) -> None:
    passes = passes_of(kind)
    handle = handle_of(passes, [int(t) for t in np.random.default_rng(4).integers(0, VOCAB, 30)])
    held = 0
    for piece in (7, 100):
        handle.align()
        held += (due := min(piece, passes.due(handle)))
        passes.prefill(handle, due)
        assert handle.kv.length == held
    assert handle.is_ready and held == 30
    if handle.align():
        mx.eval(passes.run([Work.pending(handle)]))
    handle.ahead = handle.ahead or handle.logits
    check(kind, handle, list(handle.history), 1)


@pytest.mark.parametrize("kind", BATCHED)
@pytest.mark.parametrize(
    ("padding", "chosen", "rows"),
    [(16, [0, 2, 3], [3]), (0, [0, 2, 3], [1, 2]), (2, [4, 0], [1, 1])],
)
def test_rows_apart_go_together_if_those_between_them_are_little_padding(
    kind: str, padding: int, chosen: list[int], rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PADDING", padding)
    passes = passes_of(kind)
    dice = np.random.default_rng(5)
    handles = []
    for length in (9, 2, 12, 5, 7):
        handle = handle_of(passes, [int(t) for t in dice.integers(0, VOCAB, length)])
        handle.align()
        passes.prefill(handle, length - 1)
        handles.append(handle)
        handle.align()
    ran = noted(passes)
    arrays = passes.run([Work.pending(handles[i]) for i in chosen])
    assert [len(each) for each in ran] == rows
    assert sum(len(array) for array in arrays) == len(chosen)
    for i in chosen:
        check(kind, handles[i], list(handles[i].history), 1)
    others = [handle for handle in handles if handle.ahead is None]
    mx.eval(passes.run([Work.pending(handle) for handle in others]))
    for handle in others:
        check(kind, handle, list(handle.history), 1)
