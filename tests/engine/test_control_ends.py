"""Controllers that stop, fail, watch or ask for what makes no sense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import mlxgen
from mlxgen import Branch, Chunk, OptionError, StateError, Wait
from mlxgen.tokens import Token
from tests.fakes.controllers import Recited, Told, alphabet, anything, finish
from tests.fakes.speaking import PROMPT, reciter

# ---- ends, and what makes no sense


def test_a_wrong_branch_ends_its_branch_with_an_error_that_names_it() -> None:
    speaker = reciter("abc")
    run = speaker.lm.control(
        PROMPT, Recited([anything(speaker)], [anything(speaker), Branch(9, [1])])
    )
    with pytest.raises(
        OptionError, match=r"branches\[1\]\.backtrack: .* 2 tokens, got 9"
    ) as caught:
        finish(run)
    assert caught.value.__notes__ == ["in branch ()"]
    assert run.results[()].text == "a" and run.branches == ()
    assert list(run) == []


def test_a_controller_that_fails_ends_its_branch_with_its_own_error() -> None:
    def decide(index: int, history: list[Token]) -> list[Branch]:
        raise LookupError("no such thing")

    run = reciter("abc").lm.control(PROMPT, Told(PROMPT, decide))
    with pytest.raises(LookupError, match="no such thing"):
        finish(run)
    assert run.stats.running == run.stats.queued == 0


def test_a_controller_that_gets_no_further_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxgen.engine.control.IDLE_CALLS", 200)
    woken = Wait("nothing")
    woken.wake()
    for answer in ([Branch(ff_tokens=[[]])], [Branch(1, None, [[1]])], woken):
        run = reciter("abc").lm.control(PROMPT, Recited(answer))
        with pytest.raises(StateError, match="neither sampled a token"):
            finish(run)


@pytest.mark.parametrize(
    "options",
    [
        {"hooks": print},
        {"banned": "x"},
        {"close_json": True, "filters": mlxgen.JsonObject()},
        {"prefix": [1]},
        {"max_resample": 3},
        {"allow_retract": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_make_no_sense_with_a_controller_are_refused(options: Any) -> None:
    with pytest.raises(OptionError, match="controller") as caught:
        reciter("a").lm.control(PROMPT, Recited([]), **options)
    assert caught.value.field == next(iter(options))


def test_options_that_change_nothing_are_taken() -> None:
    speaker = reciter("abc")
    run = speaker.lm.control(
        PROMPT, Recited([anything(speaker)]), hooks=[], banned=[], heal=False, allow_retract=True,
        draft="off", prefix=(),
    )  # fmt: skip
    assert finish(run) == {(): "abc"}


# ---- watching


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


def test_a_controller_may_look_at_its_chunks_before_it_is_asked() -> None:
    speaker = alphabet()
    controller = Watching([anything(speaker)])
    run = speaker.lm.control(PROMPT, controller, max_tokens=3, top_logprobs=2)
    finish(run)
    assert [c.token for c in controller.seen] == list(b"ab")
    assert all(c.logprob is not None and len(c.top) == 2 for c in controller.seen)
    assert controller.over == [("length", None)]


def test_a_controller_is_told_why_its_branch_ended() -> None:
    speaker = reciter("abc")
    wrong = Watching([Branch()])
    with pytest.raises(OptionError) as caught:
        finish(speaker.lm.control(PROMPT, wrong))
    assert wrong.over == [(None, caught.value)]
    left = Watching([anything(speaker)])
    run = speaker.lm.control(PROMPT, left)
    next(run)
    run.leave(())
    assert left.over == [("cancelled", None)]


def test_a_controller_that_fails_when_it_is_told_its_end_is_an_error_of_its_branch() -> None:
    class Bad(Recited):
        def ended(self, reason: Any, error: Any) -> None:
            raise KeyError("ended")

    run = reciter("abc").lm.control(PROMPT, Bad([]))
    with pytest.raises(KeyError):
        finish(run)
    assert list(run.errors) == [()] and run.results[()].finish_reason == "stop"


def test_closing_ends_everything_and_a_second_call_does_nothing() -> None:
    speaker = reciter("abcdef")
    with speaker.lm.control(PROMPT, Recited([anything(speaker)])) as run:
        next(run)
        next(run)
    assert run.results[()].finish_reason == "cancelled" and run.results[()].text == "ab"
    assert list(run) == [] and run.stats.kv_bytes == 0
    run.close()
