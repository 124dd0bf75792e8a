"""What a request means becomes a prompt, what its text is held to, and how that is read."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import mlxgen
from mlxgen import AllOf, Chat, Regex
from mlxgen.chat.answer import AnswerReader
from mlxgen.chat.calls.use import Form, ToolUse
from mlxgen.chat.dialect import Dialect, UnsupportedError
from mlxgen.chat.events import CallStarted
from mlxgen.chat.turn import Plan, Turn, plan_turn
from mlxgen.engine import Chunk

from ..effort import table
from .families import dialect_of
from .kit import plain, takes, tool

CHAT = Chat([{"role": "user", "content": "Hello"}])
SILENT = replace(CHAT, template={"enable_thinking": False})
FORM = Form("regex", Regex("yes|no"))
LOOK, LEAVE = tool("look"), tool("leave")


@cache
def demo() -> Dialect:
    """A model that thinks where it is not told otherwise, and calls tools."""
    return Dialect.of(mlxgen.load().vocabulary)


def using(mode: Any = "auto", **changes: Any) -> ToolUse:
    return ToolUse(tools=(LOOK, LEAVE), mode=mode, **{"names": ("look", "leave"), **changes})


def planned(dialect: Dialect | None = None, **turn: Any) -> Plan:
    return plan_turn(Turn(**{"chat": CHAT, **turn}), dialect or demo())


def test_the_text_is_held_to_what_is_asked_of_it() -> None:
    for case in table("turns"):
        turn: dict[str, Any] = {"chat": SILENT if "silent" in case else CHAT}
        if "form" in case:
            turn["form"] = FORM
        if "tools" in case:
            strict = frozenset(case["tools"].get("strict", ()))
            turn["tools"] = using(**{**case["tools"], "strict": strict})
        dialect = dialect_of(case["family"]) if "family" in case else demo()
        spec = planned(dialect, **turn).spec
        for text in case["good"] + case["bad"]:
            assert takes(spec, dialect.vocabulary, text) == (text in case["good"]), (case, text)


def test_a_turn_that_asks_nothing_is_a_prompt_and_a_reading() -> None:
    plan = planned()
    assert list(plan.ids) == CHAT.tokens(demo().vocabulary)
    assert plan.spec is None and plan.stop is None and plan.held is None
    assert plan.reading.thinking == "possible" and plan.reading.tools is None
    assert planned(keep=5).ids == plan.ids[-5:]
    assert planned(plain(), effort="high").ids == planned(plain()).ids  # it does not think


def test_space_around_a_form_is_its_own_unless_it_is_json() -> None:
    assert planned(form=FORM).field == "regex" and not planned(form=FORM).reading.trim
    assert planned(form=replace(FORM, is_json=True)).reading.trim


def test_tools_are_shown_to_the_model_and_read_out_of_its_text() -> None:
    plan = planned(tools=using())
    assert "look" in demo().vocabulary.decode(plan.ids)
    assert plan.spec is None and plan.held is None
    reader = AnswerReader(plan.reading)
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    assert CallStarted("call_0", "look") in reader.push(Chunk(call, 7, 0))[0]
    for many in (True, False):  # a second call is read only if there may be several
        reader = AnswerReader(planned(tools=using(many=many)).reading)
        events = reader.push(Chunk(call + call, 7, 0))[0]
        assert (CallStarted("call_1", "look") in events) == many


def test_what_a_model_cannot_do_is_refused_by_name() -> None:
    headers = replace(plain(), marks=replace(plain().marks, initial="header"))
    for turn, dialect, field in (
        ({"tools": using("required")}, plain(), "tool_choice"),
        ({"form": FORM}, headers, "regex"),
    ):
        with pytest.raises(UnsupportedError) as refused:
            planned(dialect, **turn)
        assert refused.value.field == field


def test_a_plan_knows_the_thinking_that_may_come() -> None:
    thinking = planned().thinking
    assert thinking is not None
    assert (thinking.state, thinking.start, thinking.end) == ("opening", "<think>", "</think>")
    assert planned(chat=SILENT).thinking is None
    for effort, budget in (("low", 1024), ("high", 2000)):  # no more than is usual
        assert planned(effort=effort, usual_budget=2000).thinking_budget == budget
    begun = [*CHAT.messages, {"role": "assistant", "content": "<think>Well"}]
    assert planned(chat=Chat(begun, continue_final_message=True)).reading.thinking == "open"


def test_a_call_ends_the_thinking_unless_the_text_is_held_to_a_form() -> None:
    free, forced = (planned(tools=using(mode)).thinking for mode in ("auto", "required"))
    assert free is not None and free.edges["reasoning"]["<tool_call>"] == "call"
    assert forced is not None and forced.edges["reasoning"] == {"</think>": "content"}


@pytest.mark.slow
def test_a_schema_of_which_no_grammar_can_be_made_is_held_by_its_outline() -> None:
    parts: list[Any] = [
        {"anyOf": [{"properties": {f"k{i}{j}": {}}} for j in range(9)]} for i in range(9)
    ]
    lost = tool("lost", a={"allOf": parts}, b={"type": "integer"})
    use = ToolUse(tools=(LOOK, lost), mode="required", names=("look", "lost"))
    plan = planned(tools=use)
    assert plan.held is not None and plan.held.loose == {"lost"}
    assert plan.held.spec_of({"lost"}) is not None and plan.held.alone("look") is not None
    assert isinstance(plan.spec, AllOf) and "k00" not in repr(plan.spec.specifications[0])
