"""Controllers that fork: names, copies, sharing, waiting and leaving."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from mlxgen import Branch, LanguageModel, Limits, OptionError, QueueFullError, StateError, Wait
from mlxgen.engine.control import Control
from mlxgen.tokens import Token
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import cache_kinds
from tests.fakes.controllers import Recited, anything, check_integrity, finish
from tests.fakes.speaking import PROMPT, Speaker, reciter

LONG = [t % 96 for t in range(500)]


def run_of(*tokens: str) -> Branch:
    return Branch(ff_tokens=[list(token.encode()) for token in tokens])


class Tree:
    """Forks ``widths[i]`` ways after its i-th token, then samples."""

    def __init__(self, size: int, widths: Sequence[int]) -> None:
        self.size = size
        self.widths = list(widths)
        self.indexes: list[int] = []

    def mid_process(
        self, branch_idx: int, last_backtrack: int, last_append: Sequence[Token]
    ) -> list[Branch]:
        self.indexes.append(branch_idx)
        width = self.widths.pop(0) if self.widths else 1
        return [Branch(sample_mask=range(self.size))] * width


@pytest.fixture(scope="module")
def llama() -> LanguageModel:
    model, make_cache = cache_kinds()["plain"]()
    lm = LanguageModel(model, alphabet_tokenizer())
    lm.runtime.make_cache = make_cache  # type: ignore[method-assign]
    assert lm.runtime.batches
    return lm


# ---- names and indexes


def test_the_branches_of_a_fork_may_begin_with_different_backtracks() -> None:
    speaker = reciter("abcdefgh")
    fork = [Branch(1, None, [list(b"X")]), Branch(3, None, [[]]), Branch(0, None, [list(b"YY")])]
    controller = Recited([anything(speaker)], [anything(speaker)], [anything(speaker)], fork, [])
    run = speaker.lm.control(PROMPT, controller)
    assert finish(run) == {(): "abX", (1,): "", (2,): "abcYY"}
    assert [run.results[name].usage.forked_tokens for name in ((), (1,), (2,))] == [0, 0, 3]


def test_forks_draw_from_seeds_of_their_own() -> None:
    speaker = Speaker([], lambda self, generated: {97 + i: 1.0 for i in range(26)})
    run = speaker.lm.control(
        PROMPT, Tree(speaker.lm.vocab_size, [4]), temperature=1.0, seed=1, max_tokens=8
    )
    texts = finish(run)
    assert len(set(texts.values())) == 4
    plain = speaker.lm.generate(PROMPT, temperature=1.0, seed=1, max_tokens=8)
    assert texts[()] == plain.text
    again = speaker.lm.control(
        PROMPT, Tree(speaker.lm.vocab_size, [4]), temperature=1.0, seed=1, max_tokens=8
    )
    assert finish(again) == texts


# ---- copies


def test_a_controller_that_cannot_be_copied_says_so() -> None:
    class Stuck(Recited):
        fork = None  # type: ignore[assignment]

        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("cannot pickle this")

    speaker = reciter("abc")
    run = speaker.lm.control(PROMPT, Stuck([anything(speaker)] * 2))
    with pytest.raises(StateError, match=r"Stuck cannot be copied .* fork method"):
        finish(run)


def test_one_wrong_branch_of_a_fork_forks_nothing() -> None:
    speaker = reciter("abc")
    run = speaker.lm.control(PROMPT, Recited([anything(speaker), Branch()]))
    with pytest.raises(OptionError, match=r"branches\[1\]\.ff_tokens"):
        finish(run)
    assert list(run.results) == [()]


def test_an_error_in_one_branch_ends_that_branch_and_no_other() -> None:
    speaker = reciter("abcdef")

    class Fragile(Tree):
        def mid_process(self, branch_idx: int, *rest: Any) -> list[Branch]:
            if branch_idx == 1 and len(self.indexes) == 3:
                raise ZeroDivisionError("on purpose")
            return super().mid_process(branch_idx, *rest)

    run = speaker.lm.control(PROMPT, Fragile(speaker.lm.vocab_size, [3]), max_tokens=5)
    errors = []
    while True:
        try:
            next(run)
        except StopIteration:
            break
        except ZeroDivisionError as error:
            errors.append(error.__notes__)
    assert errors == [["in branch (1,)"]]
    assert list(run.errors) == [(1,)]
    assert {b: r.text for b, r in run.results.items()} == {(): "abcde", (1,): "abc", (2,): "abcde"}
    assert run.results[(1,)].finish_reason is None


def test_more_branches_than_there_is_room_for_are_an_error_of_the_one_that_wants_them() -> None:
    speaker = reciter("abc")
    limits = Limits(max_batch=2, max_queue=1)
    run = speaker.lm.control(PROMPT, Tree(speaker.lm.vocab_size, [1, 6]), limits=limits)
    with pytest.raises(QueueFullError):
        finish(run)


# ---- together


def test_a_pass_has_a_row_for_each_branch() -> None:
    speaker = reciter("abcdefgh")
    run = speaker.lm.control(PROMPT, Tree(speaker.lm.vocab_size, [1, 4]), max_tokens=6)
    speaker.model.forget()
    finish(run)
    widths = [len(rows) for rows in speaker.model.rows]
    alone = widths.index(4)
    assert widths[:alone] == [1] * alone and 1 <= alone <= 2 and set(widths[alone:]) == {4}


def test_a_long_run_before_a_fork_goes_through_the_model_once() -> None:
    speaker = reciter("", prompt_length=0)
    run = [ord("a") + i % 26 for i in range(200)]
    controller = Recited([Branch(ff_tokens=[run])], [anything(speaker)] * 4, [anything(speaker)])
    control = speaker.lm.control(PROMPT, controller, max_tokens=202)
    next(control)
    speaker.model.forget()
    finish(control)
    assert set(control.results) == {(), (1,), (2,), (3,)}
    assert sum(len(row) for rows in speaker.model.rows for row in rows) < 220
    assert {len(result.tokens) for result in control.results.values()} == {201}


def test_a_fork_of_8_holds_the_common_kv_once_until_it_is_written(llama: LanguageModel) -> None:
    run = llama.control(LONG, Tree(96, [1, 1, 8, 1]), max_tokens=6)
    next(run)
    next(run)
    (root,) = run._live
    kv = root.kv.nbytes
    gc.collect()
    before = mx.get_active_memory()
    run._decide()
    assert len(run.branches) == 8
    assert mx.get_active_memory() - before < kv / 4
    held = sum(handle.kv.nbytes for handle in run._live)
    assert held == 8 * kv  # as each of them counts it
    finish(run)
    gc.collect()
    assert mx.get_active_memory() - before < kv


def test_leaving_a_branch_frees_its_row(llama: LanguageModel) -> None:
    run = llama.control(LONG, Tree(96, [8]), max_tokens=100)
    for _ in range(16):
        next(run)
    running, held = run.stats.running, run.stats.kv_bytes
    assert running == 8
    for branch in ((3,), (1,), (), (3,), (7,), (6,), (5,), (4,)):
        run.leave(branch)
    assert run.branches == ((2,),)
    assert run.stats.running == 1 and run.stats.kv_bytes <= held / 2
    assert {branch for branch, _ in run} == {(2,)}
    assert run.results[(2,)].finish_reason == "length"
    assert run.results[(1,)].finish_reason == "cancelled"
    assert len(run.results[(1,)].tokens) == 2
    with pytest.raises(OptionError, match="name of a branch"):
        run.leave((9,))


def test_a_branch_without_room_starts_again_later_and_nobody_can_tell(llama: LanguageModel) -> None:
    def texts(limits: Limits | None) -> tuple[dict[Any, str], int]:
        run = llama.control(
            LONG[:200], Tree(96, [1, 3]), limits=limits, max_tokens=120, temperature=1.0, seed=3
        )
        found = {}
        for _ in run:
            check_integrity(run)
        found = {branch: result.text for branch, result in run.results.items()}
        return found, run.stats.preempted

    free, none = texts(None)
    tight, some = texts(Limits(max_bytes=1_200_000, keep_prefixes=False))
    assert free == tight and none == 0 and some > 0


# ---- waiting


class Meeting:
    """Two branches: the root waits until its fork has said enough."""

    def __init__(self, size: int, waits: list[Wait], both: bool = False) -> None:
        self.size = size
        self.waits = waits
        self.both = both
        self.calls = 0

    def fork(self) -> Meeting:
        twin = Meeting(self.size, self.waits, self.both)
        twin.calls = self.calls
        return twin

    def mid_process(
        self, branch_idx: int, last_backtrack: int, last_append: Sequence[Token]
    ) -> list[Branch] | Wait:
        self.calls += 1
        if self.calls == 2:
            return [Branch(ff_tokens=[[]])] * 2
        if self.calls == 3 and (branch_idx == 0 or self.both):
            self.waits.append(Wait(f"a word from the other of {branch_idx}"))
            return self.waits[-1]
        if branch_idx == 1 and self.calls == 6:
            self.waits[0].wake()
        return [Branch(sample_mask=range(self.size))]


def test_a_branch_that_waits_is_not_asked_or_run_until_it_is_woken() -> None:
    speaker = reciter("abcdefgh")
    run = speaker.lm.control(PROMPT, Meeting(speaker.lm.vocab_size, []), max_tokens=6)
    order = [branch for branch, _ in run]
    assert order[:4] == [(), (1,), (1,), (1,)]
    assert {b: r.text for b, r in run.results.items()} == {(): "abcdef", (1,): "abcdef"}


def test_where_all_wait_the_error_says_who_waits_for_what() -> None:
    speaker = reciter("abc")
    run = speaker.lm.control(PROMPT, Meeting(speaker.lm.vocab_size, [], both=True))
    with pytest.raises(StateError, match="all branches wait") as caught:
        finish(run)
    assert "() for a word from the other of 0" in str(caught.value)
    assert "(1,) for a word from the other of 1" in str(caught.value)
    assert set(run.errors) == {(), (1,)} and run.branches == ()
    assert list(run) == []


def test_a_consumer_may_wake_a_branch() -> None:
    speaker = reciter("abcdef")
    waits: list[Wait] = []
    meeting = Meeting(speaker.lm.vocab_size, waits)
    run = speaker.lm.control(PROMPT, meeting, max_tokens=6)
    order = []
    for branch, _ in run:
        order.append(branch)
        if len(order) == 2:
            waits[0].wake()
    assert order == [(), (1,), *[(1,), ()] * 4, ()] or order.count(()) == 6
    assert run.results[()].text == "abcdef"


def test_a_branch_may_be_left_while_it_waits() -> None:
    speaker = reciter("abcdef")
    waits: list[Wait] = []
    run: Control[Any] = speaker.lm.control(
        PROMPT, Meeting(speaker.lm.vocab_size, waits), max_tokens=6
    )
    assert [branch for branch, _ in (next(run), next(run))] == [(), (1,)]
    run.leave(())
    assert finish(run) == {(1,): "abcdef"}
    waits[0].wake()
    assert run.results[()].finish_reason == "cancelled"


def test_the_kv_of_a_waiting_branch_goes_first_where_room_is_short(llama: LanguageModel) -> None:
    limits = Limits(max_bytes=700_000, keep_prefixes=False)
    run = llama.control(LONG[:200], Meeting(96, []), limits=limits, max_tokens=60)
    for _ in run:
        check_integrity(run)
    roomy = llama.control(LONG[:200], Meeting(96, []), max_tokens=60)
    finish(roomy)
    assert run.stats.preempted > 0 and roomy.stats.preempted == 0
    assert {b: r.tokens for b, r in run.results.items()} == {
        b: r.tokens for b, r in roomy.results.items()
    }
