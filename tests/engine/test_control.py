"""Controllers and their branches: what ``test_control_laws`` cannot tell."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

import mlxgen
from mlxgen import (
    Branch,
    Chunk,
    DeadEndError,
    FilterError,
    LanguageModel,
    Limits,
    OptionError,
    QueueFullError,
    StateError,
    Wait,
)
from mlxgen.tokens import Token
from tests.engine.kit import options_for
from tests.fakes.architectures import of_kind
from tests.fakes.controllers import Call, Recited, alphabet, anything, check_integrity, finish
from tests.fakes.speaking import PROMPT, Speaker, reciter

LONG = [t % 96 for t in range(500)]


def tree(lm: LanguageModel, *widths: int) -> Recited:
    """Forks ``widths[i]`` ways after its i-th token, and samples."""
    free = Branch(sample_mask=range(lm.vocab_size))
    return Recited(*[[free] * width for width in widths], [free])


@pytest.fixture(scope="module")
def llama() -> LanguageModel:
    return of_kind("plain")


# ---- nothing restricted --------------------------------------------------------------------------


def test_a_controller_that_allows_everything_gives_the_plain_text() -> None:
    speaker = alphabet()
    for options in options_for("control").values():
        plain = speaker.lm.generate(PROMPT, **{**options, "allow_retract": None})
        run = speaker.lm.control(PROMPT, Recited([anything(speaker)]), **options)
        assert finish(run) == {(): plain.text}
        result = run.results[()]
        assert (result.tokens, result.finish_reason) == (plain.tokens, plain.finish_reason)
        assert result.stop == plain.stop
        assert [c.top for c in result.chunks] == [c.top for c in plain.chunks]
        assert [c.candidates for c in result.chunks] == [c.candidates for c in plain.chunks]
        assert result.usage.forced_tokens == plain.usage.forced_tokens


def test_what_a_check_takes_back_is_drawn_anew_and_its_controller_asked_once_a_token() -> None:
    def say(self: Speaker, generated: list[Token]) -> dict[Token, float]:
        known = {"": "[", "[": "1", "[1": ",", "[1,": "1"}.get(self.text(generated), "]")
        return {ord(known): 0.0} | ({ord("2"): -0.5} if len(generated) == 3 else {})

    speaker, slow = Speaker([], say), mlxgen.Checked(lambda *_: time.sleep(0.02), at=",")
    schema = mlxgen.JsonSchema({"items": {"type": "integer"}, "type": "array", "uniqueItems": True})
    for seed in range(5):
        run = speaker.lm.control(PROMPT, Recited([anything(speaker)]), filters=schema, seed=seed)
        assert finish(run) == {(): "[1,2]"}
    controller = Recited([anything(speaker)])
    assert finish(speaker.lm.control(PROMPT, controller, filters=slow, max_tokens=4))[()] == "[1,1"
    assert [call.last_append for call in controller.calls] == [[], *([ord(c)] for c in "[1,")]


# ---- runs, splices, temperatures, the prompt -----------------------------------------------------


def test_a_run_goes_through_the_model_in_one_pass_with_what_was_sampled_before_it() -> None:
    speaker = reciter("abcdefgh")
    controller = Recited([Branch(ff_tokens=[list(b"XYZ")])], [anything(speaker)], [])
    run = speaker.lm.control(PROMPT, controller)
    speaker.model.forget()
    assert finish(run) == {(): "XYZd"}
    assert speaker.model.fed[0] == [*PROMPT, *b"XYZ"]
    result = run.results[()]
    assert [c.forced for c in result.chunks if c.token is not None] == [True, True, True, False]
    assert result.usage.forced_tokens == 3


@pytest.mark.parametrize(
    "options", [{}, {"repetition_penalty": 3.0}, {"filters": mlxgen.Regex("[a-z]*")}]
)
def test_a_backtrack_may_reach_into_the_prompt(options: dict[str, Any]) -> None:
    def say(self: Speaker, history: list[Token]) -> list[Token]:
        return [97 + (sum(history) + i) % 26 for i in range(26)]

    speaker, prompt = Speaker([], say, prompt_length=0), list(b"hello there")
    free = [anything(speaker)]
    run = speaker.lm.control(
        prompt, Recited(free, free, [Branch(5, list(b"xyz"))], free), max_tokens=6, **options
    )
    finish(run)
    result = run.results[()]
    assert result.usage.prompt_tokens == len(prompt) - 3 and len(result.tokens) == 6
    first = [Branch(sample_mask=list(b"xyz"))]
    plain = speaker.lm.control(prompt[:-3], Recited(first, free), max_tokens=6, **options)
    finish(plain)
    assert plain.results[()].tokens == result.tokens and plain.text() == result.text
    whole = Recited([Branch(1, None, [list(b"##")])], [])
    assert finish(speaker.lm.control(PROMPT, whole)) == {(): "##"}


# ---- filters -------------------------------------------------------------------------------------


def test_filters_hold_beside_masks_and_what_they_force_comes_before_anything_is_asked() -> None:
    speaker = alphabet()
    controller = Watching([anything(speaker)], [Branch(sample_mask=list(b"bcd789"))])
    run = speaker.lm.control(PROMPT, controller, filters=mlxgen.Regex("start: (a|b)[0-9a-b]{3}"))
    text = finish(run)[()]
    assert text[:8] == "start: a" and set(text[8:]) <= set("b789") and len(text) == 11
    assert controller.calls[0] == Call(0, 0, list(b"start: "))
    assert run.results[()].finish_reason == "filter"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Branch(sample_mask=list(b"xyz")), DeadEndError),
        (Branch(ff_tokens=[list(b"12x")]), FilterError),
        (Branch(9, [1]), OptionError),
        (Branch(), OptionError),
    ],
)
def test_what_cannot_be_done_ends_the_branch_with_its_name(answer: Branch, error: Any) -> None:
    speaker = alphabet()
    run = speaker.lm.control(PROMPT, Recited([answer]), filters=mlxgen.Regex("[0-9]{3}"))
    with pytest.raises(error) as caught:
        finish(run)
    assert caught.value.__notes__ == ["in branch ()"] and run.errors == {(): caught.value}
    assert run.results[()].finish_reason is None and run.branches == ()
    assert list(run) == [] and run.stats.kv_bytes == 0


# ---- ends, errors, and who is told ---------------------------------------------------------------


def test_what_makes_no_sense_is_refused_and_what_stops_at_once_ends_without_a_pass() -> None:
    speaker = reciter("abc")
    wrong: Any
    for wrong in (3, object(), lambda: None):
        with pytest.raises(OptionError) as error:
            speaker.lm.control(PROMPT, wrong)
        assert error.value.field == "controller"
    options: list[dict[str, Any]] = [
        {"hooks": print},
        {"banned": "x"},
        {"close_json": True, "filters": mlxgen.JsonObject()},
        {"prefix": [1]},
        {"max_resample": 3},
        {"allow_retract": False},
        {"thinking_budget": 3},
    ]
    for each in options:
        with pytest.raises(OptionError, match="controller") as error:
            speaker.lm.control(PROMPT, Recited([]), **each)
        assert error.value.field == next(iter(each))
    assert speaker.model.passes == 0
    run = speaker.lm.control(PROMPT, Recited([]))
    speaker.model.forget()  # what was tried of the model
    assert finish(run) == {(): ""} and speaker.model.passes == 0


def test_a_controller_that_gets_no_further_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxgen.engine.control.IDLE_CALLS", 20)
    woken = Wait("nothing")
    woken.wake()
    for answer in ([Branch(ff_tokens=[[]])], [Branch(1, None, [[1]])], woken):
        with pytest.raises(StateError, match="not sampled a token"):
            finish(reciter("abc").lm.control(PROMPT, Recited(answer)))
    speaker = reciter("abcdef")
    again = [anything(speaker, backtrack=1)]
    run = speaker.lm.control(PROMPT, Recited([anything(speaker)], *[again] * 60, []))
    assert len(finish(run)[()]) == 1


class Watching(Recited):
    """Is shown its chunks and told its end."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.seen: list[Chunk] = []
        self.over: list[tuple[Any, Any]] = []

    def mid_process(
        self, branch_idx: int, last_backtrack: int, last_append: Sequence[Token]
    ) -> Any:
        seen = [chunk.token for chunk in self.seen]
        assert seen[len(seen) - len(last_append) :] == list(last_append)
        return super().mid_process(branch_idx, last_backtrack, last_append)

    def observe(self, chunk: Chunk) -> None:
        self.seen.append(chunk)

    def ended(self, reason: Any, error: Any) -> None:
        self.over.append((reason, error))


def test_a_controller_sees_its_chunks_before_it_is_asked_and_is_told_its_end() -> None:
    speaker = alphabet()
    controller = Watching([anything(speaker)])
    finish(speaker.lm.control(PROMPT, controller, max_tokens=3, top_logprobs=2))
    assert [c.token for c in controller.seen] == list(b"ab")
    assert all(c.logprob is not None and len(c.top) == 2 for c in controller.seen)
    assert controller.over == [("length", None)]
    twins: list[Watching] = []

    class Forked(Watching):
        def fork(self) -> Forked:
            twins.append(twin := Forked(*self.answers))
            return twin

    free = anything(speaker)
    finish(speaker.lm.control(PROMPT, Forked([free], [free] * 2, [free]), max_tokens=3))
    assert [c.token for c in twins[0].seen] == list(b"b")  # the first one is its parent's
    wrong = Watching([Branch()])
    with pytest.raises(OptionError) as caught:
        finish(speaker.lm.control(PROMPT, wrong))
    assert wrong.over == [(None, caught.value)]
    left = Watching([anything(speaker)])
    run = speaker.lm.control(PROMPT, left)
    next(run)
    run.leave(())
    assert left.over == [("cancelled", None)]

    class Bad(Recited):
        def ended(self, reason: Any, error: Any) -> None:
            raise KeyError("ended")

    bad = speaker.lm.control(PROMPT, Bad([]))
    with pytest.raises(KeyError):
        finish(bad)
    assert list(bad.errors) == [()] and bad.results[()].finish_reason == "stop"


# ---- forks ---------------------------------------------------------------------------------------


def test_forks_draw_from_seeds_of_their_own() -> None:
    speaker = Speaker([], lambda self, generated: {97 + i: 1.0 for i in range(26)})
    options: dict[str, Any] = {"temperature": 1.0, "seed": 1, "max_tokens": 8}
    texts, again = (
        finish(speaker.lm.control(PROMPT, tree(speaker.lm, 4), **options)) for _ in range(2)
    )
    assert len(set(texts.values())) == 4 and again == texts
    assert texts[()] == speaker.lm.generate(PROMPT, **options).text


def test_what_is_wrong_with_a_fork_forks_nothing() -> None:
    class Stuck(Recited):
        fork = None  # type: ignore[assignment]

        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("cannot pickle this")

    speaker = reciter("abc")
    assert copy.deepcopy([speaker.lm])[0] is speaker.lm  # which controllers hold
    with pytest.raises(StateError, match=r"Stuck cannot be copied .* fork method"):
        finish(speaker.lm.control(PROMPT, Stuck([anything(speaker)] * 2)))
    run = speaker.lm.control(PROMPT, Recited([anything(speaker), Branch()]))
    with pytest.raises(OptionError) as error:
        finish(run)
    assert error.value.field == "branches[1].ff_tokens" and list(run.results) == [()]
    limits = Limits(max_batch=2, max_queue=1)
    run = speaker.lm.control(PROMPT, tree(speaker.lm, 1, 6), limits=limits)
    with pytest.raises(QueueFullError):
        finish(run)


def test_a_pass_has_a_row_for_each_branch_and_the_common_text_runs_once() -> None:
    speaker = reciter("", prompt_length=0)
    run = [ord("a") + i % 26 for i in range(200)]
    free = anything(speaker)
    control = speaker.lm.control(
        PROMPT, Recited([Branch(ff_tokens=[run])], [free] * 4, [free]), max_tokens=206
    )
    next(control)
    speaker.model.forget()
    finish(control)
    assert sum(len(row) for rows in speaker.model.rows for row in rows) < 220
    assert {len(result.tokens) for result in control.results.values()} == {201}
    assert [r.usage.forked_tokens for _, r in sorted(control.results.items())] == [0, *[200] * 3]


def test_a_fork_of_8_holds_the_common_kv_once_until_it_is_written(llama: LanguageModel) -> None:
    run = llama.control(LONG, tree(llama, 1, 1, 8), max_tokens=6)
    next(run)
    next(run)
    held = run.stats.kv_bytes
    gc.collect()
    before = mx.get_active_memory()
    run._decide()
    assert len(run.branches) == 8 and mx.get_active_memory() - before < held / 4
    finish(run)
    gc.collect()
    assert mx.get_active_memory() - before < held


def test_leaving_a_branch_frees_its_row_and_leaves_the_others_alone(llama: LanguageModel) -> None:
    run = llama.control(LONG, tree(llama, 8), max_tokens=100)
    for _ in range(12):  # and four more are ready
        next(run)
    held = run.stats.kv_bytes
    assert run.stats.running == 8
    for branch in ((3,), (1,), (), (3,), (7,), (6,), (5,), (4,)):
        run.leave(branch)
    assert run.branches == ((2,),)
    assert run.stats.running == 1 and run.stats.kv_bytes <= held / 2
    assert {branch for branch, _ in run} == {(2,)}
    assert run.results[(2,)].finish_reason == "length"
    assert run.results[(1,)].finish_reason == "cancelled" and len(run.results[(1,)].tokens) == 2
    for wrong in ((9,), [1], "x"):
        with pytest.raises(OptionError) as error:
            run.leave(wrong)  # type: ignore[arg-type]
        assert error.value.field == "branch"


# ---- waiting, and too little room ----------------------------------------------------------------


class Meeting:
    """Two branches: the root waits until its fork has said enough."""

    def __init__(self, size: int, waits: list[Wait]) -> None:
        self.size, self.waits, self.calls = size, waits, 0

    def fork(self) -> Meeting:
        twin = Meeting(self.size, self.waits)
        twin.calls = self.calls
        return twin

    def mid_process(
        self, branch_idx: int, last_backtrack: int, last_append: Sequence[Token]
    ) -> list[Branch] | Wait:
        self.calls += 1
        if self.calls == 2:
            return [Branch(ff_tokens=[[]])] * 2
        if self.calls == 3 and branch_idx == 0:
            self.waits.append(Wait("a word from the other"))
            return self.waits[-1]
        if branch_idx == 1 and self.calls == 6:
            self.waits[0].wake()
        return [Branch(sample_mask=range(self.size))]


@pytest.mark.parametrize("woken", ["by the other", "by the caller", "never"])
def test_a_branch_that_waits_is_not_asked_or_run_until_it_is_woken(woken: str) -> None:
    lm, waits = reciter("abcdef").lm, list[Wait]()
    run = lm.control(PROMPT, Meeting(lm.vocab_size, waits), max_tokens=6)
    assert [branch for branch, _ in (next(run), next(run))] == [(), (1,)]
    assert run.stats.running == run.stats.queued == 1
    if woken == "by the caller":
        waits[0].wake()
    elif woken == "never":
        run.leave(())  # while it waits
    told = [branch for branch, _ in run]
    assert told[:2] == [(1,), (1,)] or (woken == "by the caller" and told.count(()) == 5)
    texts = {branch: result.text for branch, result in run.results.items()}
    assert texts == {(): "a" if woken == "never" else "abcdef", (1,): "abcdef"}


@pytest.mark.parametrize("waits", [False, True])
def test_a_branch_without_room_starts_again_later_and_nobody_can_tell(
    llama: LanguageModel, waits: bool
) -> None:
    def told(most: int | None) -> tuple[dict[Any, Any], int]:
        limits = None if most is None else Limits(max_bytes=most, keep_prefixes=False)
        controller: Any = Meeting(96, []) if waits else tree(llama, 1, 3)
        run = llama.control(
            LONG[:200], controller, limits=limits, max_tokens=120, temperature=1.0, seed=3
        )
        for _ in run:
            check_integrity(run)
        return {
            branch: result.tokens for branch, result in run.results.items()
        }, run.stats.preempted

    free, none = told(None)
    tight, some = told(900_000 if waits else 1_200_000)
    assert free == tight and none == 0 and some > 0
