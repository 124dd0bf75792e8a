"""Model families that mlx-lm has no parser for: their calls, their thoughts, and the way back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mlxgen import Chat
from mlxgen.chat.answer import AnswerReader
from mlxgen.chat.calls.use import Form, ToolUse
from mlxgen.chat.dialect import Dialect, UnsupportedError
from mlxgen.chat.events import (
    CallArguments,
    CallStarted,
    ChatEvent,
    Ended,
    Mark,
    Reasoning,
    Retracted,
    Text,
    joined,
)
from mlxgen.chat.splitter import Reading
from mlxgen.chat.turn import Plan, Turn, plan_turn
from mlxgen.engine import Chunk, FinishReason, Usage
from mlxgen.filters import Regex
from mlxgen.text.thoughts import Thoughts
from mlxgen.tokens import Vocabulary
from tests.fakes import byte_level_tokenizer

from ..effort import tries
from .kit import SIZES, pieces_of, takes, tool
from .makers import MAKERS, Maker, dialect_of

PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "where": {"type": "object"},
    "note": {"type": ["string", "null"]},
}
TOOLS = [tool("get", city={"type": "string"}), tool("get_weather", **PROPERTIES)]
ARGUMENTS = {"city": 'Oslo\n"by" the\\fjord é😊', "days": 3, "where": {"a": [1, {"b": "}"}]}}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("get_weather", ARGUMENTS),
    ("get", {"city": "Rome"}),
    ("get", {}),
]
HELLO = {"role": "user", "content": "Hello"}

every_maker = pytest.mark.parametrize("name", MAKERS)


def reading_of(name: str) -> Reading:
    plan = plan_turn(Turn(chat=Chat([HELLO]), tools=using()), dialect_of(name))
    assert plan.spec is None and plan.reading.tools is not None
    return plan.reading


def using(mode: Any = "auto", **changes: Any) -> ToolUse:
    return ToolUse(tools=tuple(TOOLS), mode=mode, **{"names": ("get", "get_weather"), **changes})


def events_of(
    name: str, pieces: Sequence[str], finish: FinishReason = "stop", reading: Reading | None = None
) -> list[ChatEvent]:
    """What the pieces of an answer are read as, without marks; neighbours of a kind are one."""
    reader = AnswerReader(reading or reading_of(name))
    chunks = [Chunk(piece, 7, index) for index, piece in enumerate(pieces)]
    chunks.append(Chunk("", 7, len(chunks), finish_reason=finish))
    *events, ended = [event for chunk in chunks for event in reader.push(chunk, Usage())[0]]
    shown = joined([e for e in events if not isinstance(e, Mark | Retracted | Ended)])
    return [*shown, ended]


def calls_of(events: Sequence[ChatEvent]) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallStarted):
            calls.append((event.name, ""))
        elif isinstance(event, CallArguments):
            calls[-1] = (calls[-1][0], event.text)
    return calls


@every_maker
def test_thoughts_text_and_calls_of_a_family_are_read(name: str) -> None:
    maker = MAKERS[name]
    calls = CALLS if maker.between is not None else CALLS[:1]
    thought, said = ("Hm." if maker.thinks else ""), ("I look." if maker.leads else "")
    text = maker.written(*calls, thought=thought, text=said)
    for pieces in ([text], list(text)):
        *events, ended = events_of(name, pieces)
        found = [(called, json.loads(arguments)) for called, arguments in calls_of(events)]
        assert found == calls and isinstance(ended, Ended) and ended.reason == "calls"
        said_so = "".join(event.text for event in events if isinstance(event, Text))
        assert said_so.strip() == said
        assert [e.text.strip() for e in events if isinstance(e, Reasoning)] == [thought][
            : bool(thought)
        ]


@settings(max_examples=tries(200))
@given(st.sampled_from(sorted(MAKERS)), st.text(max_size=30), SIZES)
def test_any_text_of_an_argument_comes_through(name: str, text: str, sizes: list[int]) -> None:
    call = MAKERS[name].written(("get", {"city": text}))
    if MAKERS[name].call is not None and "=" in call and text != text.strip("\n"):
        return  # tags have line breaks of their own around a value
    ((_, arguments),) = calls_of(events_of(name, pieces_of(call, sizes)))
    assert json.loads(arguments) == {"city": text}


# ---- what is asked of calls ----------------------------------------------------------------------


def planned(name: str, **turn: Any) -> Plan:
    return plan_turn(Turn(chat=Chat([HELLO]), **turn), dialect_of(name))


def bare(maker: Maker, *calls: tuple[str, dict[str, Any]]) -> str:
    """Calls as the grammars write them: without the end that only ends a text."""
    text = maker.written(*calls)
    return text.removeprefix("<|start|>assistant").removesuffix("<|call|>")


@every_maker
def test_a_call_can_be_required_or_is_refused(name: str) -> None:
    if MAKERS[name].enforced:
        assert planned(name, tools=using("required")).spec is not None
    else:
        with pytest.raises(UnsupportedError) as refused:
            planned(name, tools=using("required"))
        assert refused.value.field == "tool_choice"


def test_in_channels_a_form_holds_for_the_final_one() -> None:
    dialect = dialect_of("gpt-oss")
    spec = planned("gpt-oss", form=Form("regex", Regex("yes|no"))).spec
    analysis = "<|channel|>analysis<|message|>Hm, maybe.<|end|><|start|>assistant"
    for header in ("<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>"):
        assert takes(spec, dialect.vocabulary, f"{analysis}{header}yes")
        assert takes(spec, dialect.vocabulary, f"{header}no")
        assert not takes(spec, dialect.vocabulary, f"{analysis}{header}maybe")
    assert not takes(spec, dialect.vocabulary, analysis)


def test_in_channels_an_answer_has_the_form_or_a_call() -> None:
    dialect = dialect_of("gpt-oss")
    spec = planned("gpt-oss", tools=using(), form=Form("regex", Regex("yes|no"))).spec
    call = bare(MAKERS["gpt-oss"], ("get", {"city": "Oslo"}))
    assert takes(spec, dialect.vocabulary, call)
    assert takes(spec, dialect.vocabulary, "<|channel|>final<|message|>no")
    assert not takes(spec, dialect.vocabulary, "<|channel|>final<|message|>maybe")


def test_a_message_that_is_continued_goes_on_in_its_channel() -> None:
    messages = [HELLO, {"role": "assistant", "content": "It is"}]
    turn = Turn(chat=Chat(messages, continue_final_message=True))
    reading = plan_turn(turn, dialect_of("gpt-oss")).reading
    events = events_of("gpt-oss", list(" cold<|end|><|start|>assistant"), reading=reading)
    assert events[:-1] == [Text(" cold")]


def test_a_message_to_an_unknown_function_is_text_without_its_header() -> None:
    text = '<|channel|>commentary to=functions.fly <|constrain|>json<|message|>{"a": 1}'
    for pieces in ([text], list(text)):
        assert events_of("gpt-oss", pieces)[:-1] == [Text('{"a": 1}')]


def test_without_tools_a_message_to_a_function_is_text() -> None:
    reading = replace(reading_of("gpt-oss"), tools=None)
    text = MAKERS["gpt-oss"].written(CALLS[1], thought="Hm.")
    events = events_of("gpt-oss", list(text), reading=reading)
    assert events[:-1] == [Reasoning("Hm."), Text('{"city": "Rome"}')]


# ---- the way back --------------------------------------------------------------------------------


def told(name: str, messages: list[dict[str, Any]]) -> str:
    dialect = dialect_of(name)
    plan = plan_turn(Turn(chat=Chat(messages), tools=using()), dialect)
    return dialect.vocabulary.decode(plan.ids)


def call(id: str, city: str = "Oslo", **more: Any) -> dict[str, Any]:
    function = {"name": "get", "arguments": {"city": city}}
    return {"id": id, "type": "function", "function": function, **more}


@pytest.mark.parametrize("name", [name for name, maker in MAKERS.items() if maker.past])
@pytest.mark.parametrize("content", ["", None])
def test_calls_and_results_are_rendered_by_the_models_template(
    name: str, content: str | None
) -> None:
    asked = {"role": "assistant", "content": content, "tool_calls": [call("c1")]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "cold"}
    text = told(name, [HELLO, asked, result])
    assert MAKERS[name].past in text
    assert text.count("Oslo") == 1 and text.count("cold") == 1


def test_a_template_that_takes_one_call_at_a_time_gets_several_one_by_one() -> None:
    asked = {"role": "assistant", "content": "", "tool_calls": [call("c1"), call("c2", "Rome")]}
    results = [
        {"role": "tool", "tool_call_id": "c2", "content": "warm"},
        {"role": "tool", "tool_call_id": "c1", "content": "cold"},
    ]
    text = told("Llama 3.1", [HELLO, asked, *results, HELLO])
    places = [text.index(word) for word in ("Oslo", "cold", "Rome", "warm")]
    assert places == sorted(places)


def test_a_template_that_takes_thoughts_or_text_before_a_call_gets_both_as_thoughts() -> None:
    asked = {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Hm.",
        "tool_calls": [call("c1")],
    }
    result = {"role": "tool", "tool_call_id": "c1", "content": "cold"}
    text = told("gpt-oss", [HELLO, asked, result])
    assert "<|channel|>analysis<|message|>Hm.\n\nI look.<|end|>" in text


def test_a_template_that_looks_for_tools_in_the_instructions_finds_them_there() -> None:
    for messages in ([HELLO], [{"role": "system", "content": "Be kind."}, HELLO]):
        text = told("Phi-4-mini, tools in a message", messages)
        head, _, rest = text.partition("<|tool|>")
        described, _, rest = rest.partition("<|/tool|>")
        assert [tool["name"] for tool in json.loads(described)] == ["get", "get_weather"]
        assert head.startswith("<|im_start|>system") and "Hello" in rest


def test_a_program_that_wants_arguments_as_text_gets_them_so() -> None:
    from mlx_lm.chat_templates import deepseek_v32

    tokenizer = dialect_of("DeepSeek V3.2").vocabulary.tokenizer._tokenizer
    wrapper = TokenizerWrapper(tokenizer, chat_template=deepseek_v32.apply_chat_template)
    asked = {"role": "assistant", "content": "", "tool_calls": [call("c1")]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "cold"}
    vocabulary = Vocabulary(wrapper)
    text = vocabulary.decode(Chat([HELLO, asked, result], tools=TOOLS).tokens(vocabulary))
    assert 'name="city" string="true">Oslo<' in text and "<result>cold</result>" in text


@pytest.mark.parametrize(
    ("marks", "text"),
    [
        (("[THINK]", "[/THINK]"), "[THINK]Hm.[/THINK]Yes."),
        (("<think>", "</think>"), "<think>Hm.</think>Yes."),
        (
            ("<think>", "</think>", "<response>", "</response>"),
            "<think>Hm.</think><response>Yes.</response>",
        ),
    ],
)
def test_a_template_tells_the_marks_of_thoughts(marks: tuple[str, ...], text: str) -> None:
    tokenizer = byte_level_tokenizer()._tokenizer
    tokenizer.chat_template = "".join(marks) + "{{ messages[0].content }}"
    dialect = Dialect.of(Vocabulary.of(tokenizer))
    reading = plan_turn(Turn(chat=Chat([HELLO])), dialect).reading
    for pieces in ([text], list(text)):
        assert events_of("Hermes", pieces, reading=reading)[:-1] == [Reasoning("Hm."), Text("Yes.")]


def test_in_channels_thoughts_end_where_another_channel_begins() -> None:
    marks = planned("gpt-oss", tools=using()).thinking
    assert marks is not None and marks.end == "<|end|>"
    thoughts = Thoughts(marks)
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So."
    )
    assert "".join(thoughts.advance(character) for character in text) == "So."


def test_results_have_the_names_of_their_functions() -> None:
    dialect = dialect_of("Hermes")
    template = "{%- for m in messages %}{{- m.role ~ ':' ~ (m.name or '-') ~ ' ' }}{%- endfor %}"
    tokenizer = dialect.vocabulary.tokenizer._tokenizer
    before, tokenizer.chat_template = tokenizer.chat_template, template
    try:
        asked = {"role": "assistant", "content": "", "tool_calls": [call("c1")]}
        result = {"role": "tool", "tool_call_id": "c1", "content": "cold"}
        tokens = Chat([HELLO, asked, result]).tokens(dialect.vocabulary)
    finally:
        tokenizer.chat_template = before
    assert dialect.vocabulary.decode(tokens) == "user:- assistant:- tool:get "


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


@pytest.mark.parametrize("name", MAKERS)
def test_a_reader_survives_whatever_a_model_makes_up(name: str) -> None:
    format = dialect_of(name).tools
    assert format is not None
    for text in ("", "[]", "null", "{", "5", '{"name": 5}', "[f(x=", "\x00", "[" * 10_000):
        *events, _ = events_of(name, [f"{format.starts[0] if format.starts else ''}{text}"])
        assert not calls_of(events)
