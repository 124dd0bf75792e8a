"""Controllers: the order of what they ask for, what they are told, and what comes out."""

from __future__ import annotations

from typing import Any

import pytest

import mlxgen
from mlxgen import Branch, DeadEndError, FilterError, OptionError, Splice
from mlxgen.tokens import Token
from tests.fakes.controllers import Call, Recited, Told, alphabet, anything, finish
from tests.fakes.speaking import END, PROMPT, Speaker, reciter

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


def test_what_is_not_a_controller_is_refused_before_anything_runs() -> None:
    wrong: Any
    for wrong in (3, object(), lambda: None):
        with pytest.raises(OptionError, match="controller: expected a controller"):
            alphabet().lm.control(PROMPT, wrong)


# ---- nothing restricted


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stop": "ef"},
        {"stop": ["zz", "g"], "max_tokens": 5},
        {"temperature": 1.0, "seed": 3, "top_k": 5},
        {"filters": mlxgen.JsonSchema(SCHEMA)},
        {"filters": mlxgen.Choice(["yes"])},
        {"top_logprobs": 2, "repetition_penalty": 1.5},
        {"ignore_eos": True, "max_tokens": 20},
        {"min_tokens": 14},
        {"hold_tokens": 3},
    ],
    ids=lambda options: " ".join(options),
)
def test_a_controller_that_allows_everything_gives_the_plain_text(options: dict[str, Any]) -> None:
    speaker = alphabet()
    plain = speaker.lm.generate(PROMPT, **options)
    run = speaker.lm.control(PROMPT, Recited([anything(speaker)]), **options)
    assert finish(run) == {(): plain.text}
    result = run.results[()]
    assert (result.tokens, result.finish_reason) == (plain.tokens, plain.finish_reason)
    assert result.stop == plain.stop
    assert [c.top for c in result.chunks] == [c.top for c in plain.chunks]
    assert result.usage.forced_tokens == plain.usage.forced_tokens


def test_the_controller_decides_while_the_pass_behind_its_token_runs() -> None:
    speaker = reciter("abcdef")
    fed = []

    def decide(index: int, history: list[Token]) -> list[Branch]:
        if len(history) > 1:
            fed.append(speaker.model.fed[-1] == [history[-1]])
        return [anything(speaker)]

    finish(speaker.lm.control(PROMPT, Told(PROMPT, decide), max_tokens=20))
    assert fed == [False, *[True] * 5]  # the first is out before anything else is submitted


# ---- masks, runs, splices, backtracks


def test_a_forced_run_is_appended_without_sampling_in_one_pass() -> None:
    speaker = reciter("abcdefgh")
    controller = Recited([Branch(ff_tokens=[list(b"XYZ")])], [anything(speaker)], [])
    run = speaker.lm.control(PROMPT, controller)
    speaker.model.forget()
    assert finish(run) == {(): "XYZd"}
    assert controller.calls == [Call(0, 0, []), Call(0, 0, list(b"XYZ")), Call(0, 0, [ord("d")])]
    assert speaker.model.fed[0] == [*PROMPT, *b"XYZ"]
    result = run.results[()]
    assert [c.forced for c in result.chunks if c.token is not None] == [True, True, True, False]
    assert result.usage.forced_tokens == 3


def test_run_and_sampled_token_go_through_the_model_together() -> None:
    speaker = reciter("abcdef")
    controller = Recited(
        [Branch(sample_mask=list(b"a"), ff_tokens=[list(b"aXY")])], [anything(speaker)]
    )
    run = speaker.lm.control(PROMPT, controller, max_tokens=4)
    speaker.model.forget()
    finish(run)
    assert speaker.model.fed == [PROMPT, list(b"aXY")]


def test_a_splice_replaces_the_sampled_token_before_anybody_sees_it() -> None:
    speaker = reciter(["a", END, "c"])
    swap = Splice([speaker.end], 1, list(b"xy"))
    controller = Recited([anything(speaker, splices=[swap])])
    run = speaker.lm.control(PROMPT, controller, max_tokens=3)
    assert finish(run) == {(): "axy"}
    assert controller.calls == [Call(0, 0, []), Call(0, 0, [ord("a")])]
    assert run.results[()].usage.redraws == 1


def test_a_splice_that_only_removes_draws_the_position_again() -> None:
    speaker = alphabet()
    controller = Recited(
        [anything(speaker, splices=[Splice((), 1)])], [Branch(sample_mask=[ord("q")])], []
    )
    run = speaker.lm.control(PROMPT, controller, temperature=1.0, seed=1)
    speaker.model.forget()
    assert finish(run) == {(): "q"}
    assert controller.calls[1] == Call(0, 0, [])
    assert run.results[()].chunks[0].attempts == 1
    assert speaker.model.passes <= 3  # the same logits serve twice


def test_a_temperature_holds_for_one_draw() -> None:
    speaker = Speaker([], lambda self, generated: {ord("a"): 1.0, ord("b"): 0.9})
    warm, cold = anything(speaker, temperature=5.0), anything(speaker)
    controller = Recited(*[[warm], [cold]] * 30, [])
    run = speaker.lm.control(PROMPT, controller, seed=5, max_tokens=60)
    text = finish(run)[()]
    assert set(text[1::2]) == {"a"}
    assert set(text[::2]) != {"a"}


# ---- the prompt


@pytest.mark.parametrize(
    "options", [{}, {"repetition_penalty": 3.0}, {"filters": mlxgen.Regex("[a-z]*")}]
)
def test_a_backtrack_may_reach_into_the_prompt(options: dict[str, Any]) -> None:
    def say(self: Speaker, history: list[Token]) -> list[Token]:
        start = sum(history) % 26
        return [97 + (start + i) % 26 for i in range(26)]

    speaker = Speaker([], say, prompt_length=0)
    prompt = list(b"hello there")
    controller = Recited(
        [anything(speaker)], [anything(speaker)], [Branch(5, list(b"xyz"))], [anything(speaker)]
    )
    run = speaker.lm.control(prompt, controller, max_tokens=6, **options)
    finish(run)
    assert controller.calls[3].last_backtrack == 5
    (first,) = controller.calls[3].last_append
    shorter = prompt[:-3]
    result = run.results[()]
    assert result.tokens[0] == first and len(result.tokens) == 6
    assert result.usage.prompt_tokens == len(shorter)
    assert run.results[()].text == speaker.vocabulary.decode(result.tokens)
    plain = speaker.lm.control(
        shorter,
        Recited([Branch(sample_mask=list(b"xyz"))], [anything(speaker)]),
        max_tokens=6,
        **options,
    )
    finish(plain)
    assert plain.results[()].tokens == result.tokens


def test_a_whole_prompt_may_be_replaced() -> None:
    speaker = reciter("abc", prompt_length=2)
    controller = Recited([Branch(1, None, [list(b"##")])], [anything(speaker)])
    assert finish(speaker.lm.control(PROMPT, controller)) == {(): "##abc"}


# ---- filters


def test_filters_and_masks_are_intersected() -> None:
    speaker = alphabet()
    controller = Recited([Branch(sample_mask=list(b"bcd789"))])
    run = speaker.lm.control(PROMPT, controller, filters=mlxgen.Regex("[0-9a-b]{3}"))
    assert set(finish(run)[()]) <= set("b789")
    assert run.results[()].finish_reason == "filter"


def test_a_mask_that_the_filters_leave_nothing_of_ends_the_branch_with_its_name() -> None:
    speaker = alphabet()
    controller = Recited([Branch(sample_mask=list(b"xyz"))])
    run = speaker.lm.control(PROMPT, controller, filters=mlxgen.Regex("[0-9]{3}"))
    with pytest.raises(DeadEndError, match="the controller's mask") as caught:
        finish(run)
    assert caught.value.__notes__ == ["in branch ()"]
    assert run.errors == {(): caught.value}


def test_what_filters_force_at_the_start_is_reported_first() -> None:
    speaker = alphabet()
    controller = Recited([anything(speaker)])
    run = speaker.lm.control(PROMPT, controller, filters=mlxgen.Regex("start: (a|b)"))
    assert finish(run) == {(): "start: a"}
    assert controller.calls == [Call(0, 0, list(b"start: "))]


def test_a_run_that_the_filters_do_not_allow_ends_the_branch() -> None:
    speaker = alphabet()
    run = speaker.lm.control(
        PROMPT, Recited([Branch(ff_tokens=[list(b"12x")])]), filters=mlxgen.Regex("[0-9]+")
    )
    with pytest.raises(FilterError):
        finish(run)
    assert run.results[()].finish_reason is None
