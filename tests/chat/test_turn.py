"""What a request means becomes a prompt, what its text is held to, and how that is read."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import mlxgen
from mlxgen import After, AllOf, Chat, Lark, Regex
from mlxgen.chat.answer import AnswerReader
from mlxgen.chat.calls.use import Form, ToolUse
from mlxgen.chat.dialect import Dialect, UnsupportedError
from mlxgen.chat.events import CallStarted
from mlxgen.chat.turn import Effort, Turn, plan_turn
from mlxgen.engine import Chunk
from mlxgen.filters.any_of import AnyOf, FirstToken

from .kit import plain, tool

CHAT = Chat([{"role": "user", "content": "Hello"}])
FORM = Form("regex", Regex("yes|no"))
LOOK, LEAVE = tool("look"), tool("leave")


@cache
def demo() -> Dialect:
    """A model that thinks where it is not told otherwise, and calls tools."""
    return Dialect.of(mlxgen.load().vocabulary)


def using(mode: Any = "auto", **changes: Any) -> ToolUse:
    return ToolUse(tools=(LOOK, LEAVE), mode=mode, **{"names": ("look", "leave"), **changes})


def text_of(dialect: Dialect, turn: Turn) -> str:
    return dialect.vocabulary.decode(plan_turn(turn, dialect).ids)


def test_a_turn_without_wishes_is_a_prompt_and_a_reading() -> None:
    plan = plan_turn(Turn(chat=CHAT), demo())
    assert list(plan.ids) == CHAT.tokens(demo().vocabulary)
    assert plan.spec is None and plan.stop is None
    assert plan.reading.thinking == "possible" and plan.reading.tools is None


def test_a_form_holds_for_what_follows_the_thinking() -> None:
    plan = plan_turn(Turn(chat=CHAT, form=FORM), demo())
    assert isinstance(plan.spec, FirstToken) and plan.spec.otherwise == FORM.spec
    assert plan.field == "regex" and not plan.reading.trim
    silent = replace(CHAT, template={"enable_thinking": False})
    assert plan_turn(Turn(chat=silent, form=FORM), demo()).spec == FORM.spec
    assert plan_turn(Turn(chat=CHAT, form=FORM), plain()).spec == FORM.spec


def test_space_before_json_means_nothing() -> None:
    form = replace(FORM, is_json=True)
    assert plan_turn(Turn(chat=CHAT, form=form), demo()).reading.trim


def test_tools_are_shown_to_the_model_and_read_out_of_its_text() -> None:
    turn = Turn(chat=CHAT, tools=using())
    assert "look" in text_of(demo(), turn)
    plan = plan_turn(turn, demo())
    assert plan.spec is None
    reader = AnswerReader(plan.reading)
    call = '<tool_call>{"name": "look", "arguments": {}}'
    events = reader.push(Chunk(call, 7, 0))[0]
    assert CallStarted("call_0", "look") in events


@pytest.mark.parametrize(
    ("use", "kind"),
    [
        (using("required"), FirstToken),
        (using("named", names=("look",)), FirstToken),
        (using(many=False), FirstToken),
        (using(strict=frozenset({"look"})), FirstToken),
        (using(names=("look",)), FirstToken),
    ],
)
def test_what_is_asked_of_calls_is_enforced(use: ToolUse, kind: type) -> None:
    spec = plan_turn(Turn(chat=CHAT, tools=use), demo()).spec
    assert isinstance(spec, kind)
    behind = spec.otherwise if isinstance(spec, FirstToken) else spec
    assert isinstance(behind, Lark if use.mode != "auto" else After)


def test_with_tools_the_text_has_the_form_or_calls() -> None:
    spec = plan_turn(Turn(chat=CHAT, tools=using(), form=FORM), demo()).spec
    assert isinstance(spec, FirstToken) and isinstance(spec.otherwise, AnyOf)
    assert spec.otherwise.specifications[0] == FORM.spec


@pytest.mark.parametrize(
    ("turn", "dialect", "field"),
    [
        (Turn(chat=CHAT, tools=using("required")), plain(), "tool_choice"),
        (
            Turn(chat=CHAT, form=FORM),
            replace(plain(), marks=replace(plain().marks, initial="header")),
            "regex",
        ),
    ],
)
def test_what_a_model_cannot_do_is_refused_by_name(
    turn: Turn, dialect: Dialect, field: str
) -> None:
    with pytest.raises(UnsupportedError) as refused:
        plan_turn(turn, dialect)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("graded", "effort", "variables"),
    [(True, "low", "low"), (False, "none", "False"), (False, "medium", "True")],
)
def test_the_effort_is_told_in_the_words_of_the_template(
    graded: bool, effort: Effort, variables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = demo().vocabulary.tokenizer._tokenizer
    shown = "{{ reasoning_effort }}" if graded else "{{ enable_thinking }}"
    monkeypatch.setattr(tokenizer, "chat_template", f"|{shown}|{{{{ messages }}}}")
    dialect = replace(demo(), grades=("low", "high") if graded else ())
    assert text_of(dialect, Turn(chat=CHAT, effort=effort)).split("|")[1] == variables


def test_an_effort_changes_nothing_if_the_model_does_not_think() -> None:
    assert plan_turn(Turn(chat=CHAT, effort="high"), plain()).ids == tuple(
        CHAT.tokens(plain().vocabulary)
    )


def test_the_last_tokens_of_a_prompt_are_kept() -> None:
    whole = plan_turn(Turn(chat=CHAT), demo()).ids
    assert plan_turn(Turn(chat=CHAT, keep=5), demo()).ids == whole[-5:]


def test_a_message_that_stopped_in_its_thoughts_is_gone_on_with_there() -> None:
    begun = [*CHAT.messages, {"role": "assistant", "content": "<think>Well"}]
    plan = plan_turn(Turn(chat=Chat(begun, continue_final_message=True)), demo())
    assert plan.reading.thinking == "open"


def test_a_plan_knows_the_marks_of_the_thinking_that_may_come() -> None:
    plan = plan_turn(Turn(chat=CHAT), demo())
    assert plan.thinking is not None
    assert (plan.thinking.state, plan.thinking.start) == ("opening", "<think>")
    assert plan.thinking.end == "</think>"
    silent = replace(CHAT, template={"enable_thinking": False})
    assert plan_turn(Turn(chat=silent), demo()).thinking is None


def test_a_call_ends_the_thinking_unless_the_text_is_held_to_a_form() -> None:
    free = plan_turn(Turn(chat=CHAT, tools=using()), demo()).thinking
    forced = plan_turn(Turn(chat=CHAT, tools=using("required")), demo()).thinking
    assert free is not None and forced is not None
    assert free.end == "</think>" and free.edges["reasoning"]["<tool_call>"] == "call"
    assert forced.edges["reasoning"] == {"</think>": "content"}


@pytest.mark.slow
def test_a_schema_of_which_no_grammar_can_be_made_is_held_by_its_outline() -> None:
    parts: list[Any] = [
        {"anyOf": [{"properties": {f"k{i}{j}": {}}} for j in range(9)]} for i in range(9)
    ]
    lost = tool("lost", a={"allOf": parts}, b={"type": "integer"})
    use = ToolUse(tools=(LOOK, lost), mode="required", names=("look", "lost"))
    plan = plan_turn(Turn(chat=CHAT, tools=use), demo())
    assert plan.held is not None and plan.held.loose == {"lost"}
    assert isinstance(plan.spec, AllOf) and isinstance(plan.held.spec_of({"lost"}), AllOf)
    assert "k00" not in repr(plan.spec.specifications[0])
    assert isinstance(plan.held.alone("look"), FirstToken | Lark)
    assert plan_turn(Turn(chat=CHAT, tools=using()), demo()).held is None
