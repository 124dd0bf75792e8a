"""Model families that mlx-lm has no parser for: their calls, their thoughts, and the way back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mlxgen import Chat
from mlxgen.chat.calls.use import ToolUse
from mlxgen.chat.dialect import Dialect, UnsupportedError
from mlxgen.chat.events import CallArguments, CallStarted, Ended, Reasoning, Text
from mlxgen.chat.turn import Plan, Turn, plan_turn
from mlxgen.tokens import Vocabulary
from tests.fakes import byte_level_tokenizer

from .families import ASKED, MAKERS, dialect_of
from .kit import chunks, events_of, said_in

TOOLS = tuple(ASKED["tools"])
CALLS = [(name, arguments) for name, arguments in ASKED["calls"]]
HELLO, CALLED, RESULT = ASKED["messages"]

every_maker = pytest.mark.parametrize("name", MAKERS)


def planned(name: str, *messages: dict[str, Any], mode: Any = "auto", **turn: Any) -> Plan:
    """The plan for a turn with tools."""
    use = ToolUse(tools=TOOLS, mode=mode, names=("get", "get_weather"))
    chat = Chat(list(messages) or [HELLO])
    return plan_turn(Turn(**{"chat": chat, "tools": use, **turn}), dialect_of(name))


@every_maker
def test_thoughts_text_and_calls_of_a_family_are_read(name: str) -> None:
    made, plan = MAKERS[name], planned(name)
    assert plan.spec is None
    for pieces in ([made["text"]], list(made["text"])):
        events = events_of(chunks(pieces), plan.reading)
        said = said_in(events)
        names = [event.name for event in said if isinstance(event, CallStarted)]
        given = [json.loads(event.text) for event in said if isinstance(event, CallArguments)]
        assert list(zip(names, given, strict=True)) == CALLS[: made["calls"]]
        assert "".join(e.text for e in said if isinstance(e, Text)).strip() == made["said"]
        assert "".join(e.text for e in said if isinstance(e, Reasoning)).strip() == made["thought"]
        assert isinstance(ended := events[-1], Ended) and ended.reason == "calls"


@every_maker
def test_a_call_can_be_required_or_is_refused(name: str) -> None:
    if MAKERS[name].get("enforced", True):
        assert planned(name, mode="required").spec is not None
    else:
        with pytest.raises(UnsupportedError) as refused:
            planned(name, mode="required")
        assert refused.value.field == "tool_choice"


def test_a_format_without_a_grammar_is_stopped_after_one_call() -> None:
    use = ToolUse(tools=TOOLS, mode="auto", names=("get", "get_weather"), many=False)
    plan = planned("DeepSeek V3.2", tools=use)
    assert plan.spec is None and plan.stop == "</｜DSML｜function_calls>"
    few = replace(use, names=("get",), many=True)
    with pytest.raises(UnsupportedError, match="a choice of tools cannot be enforced"):
        planned("DeepSeek V3.2", tools=few)


@every_maker
def test_a_reader_survives_whatever_a_model_makes_up(name: str) -> None:
    format, reading = dialect_of(name).tools, planned(name).reading
    assert format is not None
    for text in ("", "[]", "null", "{", "5", '{"name": 5}', "[f(x=", "\x00", "[" * 10_000):
        start = format.starts[0] if format.starts else ""
        found = said_in(events_of(chunks([start + text]), reading))
        assert not any(isinstance(event, CallStarted) for event in found), text


# ---- channels, and marks of thoughts -------------------------------------------------------------


def test_a_message_that_is_continued_goes_on_in_its_channel() -> None:
    messages = [HELLO, {"role": "assistant", "content": "It is"}]
    plan = planned("gpt-oss", chat=Chat(messages, continue_final_message=True), tools=None)
    events = events_of(chunks(list(" cold<|end|><|start|>assistant")), plan.reading)
    assert said_in(events) == [Text(" cold")]


@pytest.mark.parametrize(
    "text",
    [
        "[THINK]Hm.[/THINK]Yes.",
        "<think>Hm.</think>Yes.",
        "<think>Hm.</think><response>Yes.</response>",
    ],
)
def test_a_template_tells_the_marks_of_thoughts(text: str) -> None:
    tokenizer = byte_level_tokenizer()._tokenizer
    marks = text.replace("Hm.", "").replace("Yes.", "")
    tokenizer.chat_template = marks + "{{ messages[0].content }}"
    reading = plan_turn(Turn(chat=Chat([HELLO])), Dialect.of(Vocabulary.of(tokenizer))).reading
    for pieces in ([text], list(text)):
        assert said_in(events_of(chunks(pieces), reading)) == [Reasoning("Hm."), Text("Yes.")]


def test_of_several_templates_any_tells_the_format() -> None:
    dialect = dialect_of("Hermes")
    tokenizer = dialect.vocabulary.tokenizer._tokenizer
    before = tokenizer.chat_template
    tokenizer.chat_template = {"default": "{{ messages[0].content }}", "tool_use": before}
    try:
        found = Dialect.of(dialect.vocabulary).tools
    finally:
        tokenizer.chat_template = before
    assert found is not None and found.start == "<tool_call>"


# ---- the way back --------------------------------------------------------------------------------


def told(name: str, *messages: dict[str, Any]) -> str:
    return dialect_of(name).vocabulary.decode(planned(name, *messages).ids)


@pytest.mark.parametrize("name", [name for name, made in MAKERS.items() if "past" in made])
def test_calls_and_results_are_rendered_by_the_models_template(name: str) -> None:
    for content in ("", None):
        text = told(name, HELLO, {**CALLED, "content": content}, RESULT)
        assert MAKERS[name]["past"] in text
        assert text.count("Oslo") == 1 and text.count("cold") == 1


def test_a_template_that_takes_thoughts_or_text_before_a_call_gets_both_as_thoughts() -> None:
    asked = {**CALLED, "content": "I look.", "reasoning_content": "Hm."}
    text = told("gpt-oss", HELLO, asked, RESULT)
    assert "<|channel|>analysis<|message|>Hm.\n\nI look.<|end|>" in text


def test_a_template_that_looks_for_tools_in_the_instructions_finds_them_there() -> None:
    for messages in ([HELLO], [{"role": "system", "content": "Be kind."}, HELLO]):
        text = told("Phi-4-mini, tools in a message", *messages)
        head, _, rest = text.partition("<|tool|>")
        described, _, rest = rest.partition("<|/tool|>")
        assert [tool["name"] for tool in json.loads(described)] == ["get", "get_weather"]
        assert head.startswith("<|im_start|>system") and "Hello" in rest


def test_a_program_that_wants_arguments_as_text_gets_them_so() -> None:
    from mlx_lm.chat_templates import deepseek_v32

    tokenizer = dialect_of("DeepSeek V3.2").vocabulary.tokenizer._tokenizer
    wrapper = TokenizerWrapper(tokenizer, chat_template=deepseek_v32.apply_chat_template)
    vocabulary = Vocabulary(wrapper)
    text = vocabulary.decode(Chat([HELLO, CALLED, RESULT], tools=TOOLS).tokens(vocabulary))
    assert 'name="city" string="true">Oslo<' in text and "<result>cold</result>" in text
