"""Arguments of a call are passed on while the model writes them, in each format."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.server.wire.call_shapes import SHAPES
from mlxgen.server.wire.splitter import Marks, Span, Splitter
from mlxgen.server.wire.tools import ToolReader

from ...effort import tries
from .kit import SIZES, format_of, pieces_of, plain, tool

TOOLS = [
    tool("get", city={"type": "string"}),
    tool(
        "get_weather",
        city={"type": "string"},
        days={"type": "integer"},
        units={"enum": ["C", "F"]},
        where={"type": "object"},
        note={"type": ["string", "null"]},
    ),
]
PARSED = {
    "city": 'Oslo\n"by" the\\fjord é😊',
    "days": 3,
    "units": "C",
    "where": {"a": [1, {"b": "}"}]},
    "note": None,
}


def written(style: str, arguments: dict[str, Any], name: str = "get_weather") -> str:
    """A call in this format, as the models are taught it."""
    plain_text = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in arguments.items()
    }
    whole = json.dumps(arguments)
    tagged = {
        "qwen3_coder": "<parameter={}>\n{}\n</parameter>\n",
        "glm47": "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n",
        "minimax_m2": '<parameter name="{}">{}</parameter>\n',
    }
    tagged["laguna"] = tagged["glm47"]
    body = "".join(tagged.get(style, "").format(k, v) for k, v in plain_text.items())
    return {
        "json_tools": f'<tool_call>\n{{"name": "{name}", "arguments": {whole}}}\n</tool_call>',
        "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>"
        f"functions.{name}:7<|tool_call_argument_begin|>{whole}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        "mistral": f"[TOOL_CALLS]{name}[ARGS]{whole}",
        "qwen3_coder": f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>",
        "glm47": f"<tool_call>{name}\n{body}</tool_call>",
        "laguna": f"<tool_call>{name}\n{body}</tool_call>",
        "minimax_m2": "<minimax:tool_call>\n"
        f'<invoke name="{name}">\n{body}</invoke>\n</minimax:tool_call>',
    }[style]


def spans_of(style: str, pieces: list[str], *, cut: bool = False) -> list[list[Span]]:
    """The spans that each piece gives, and those of the end."""
    tools = ToolReader(format_of(style, plain().vocabulary), TOOLS)
    splitter = Splitter(Marks(), tools=tools)
    return [*(splitter.push(piece) for piece in pieces), splitter.flush(cut=cut)]


def calls_of(spans: list[list[Span]]) -> list[tuple[str, str]]:
    """Names and arguments; everything else in these texts belongs to marks."""
    calls: list[tuple[str, str]] = []
    for span in (span for some in spans for span in some):
        assert span.kind in ("call", "mark"), span
        calls.extend((call.name, call.arguments) for call in span.calls)
        if span.more:
            calls[-1] = (calls[-1][0], calls[-1][1] + span.more)
    return calls


@pytest.mark.parametrize("style", SHAPES)
@given(sizes=SIZES)
@settings(max_examples=tries(20), deadline=None)
def test_arguments_are_what_the_parser_reads_of_the_whole(style: str, sizes: list[int]) -> None:
    text = written(style, PARSED)
    ((name, arguments),) = calls_of(spans_of(style, pieces_of(text, sizes)))
    assert name == "get_weather"
    assert json.loads(arguments) == PARSED
    reader = ToolReader(format_of(style, plain().vocabulary), TOOLS)
    inner = text.removeprefix(reader.format.start)
    (call,) = reader.read(inner.removesuffix(reader.format.end))
    assert json.loads(call.arguments) == json.loads(arguments)


@pytest.mark.parametrize("style", SHAPES)
def test_arguments_grow_with_the_text(style: str) -> None:
    long = " ".join(["word"] * 50)
    spans = spans_of(style, list(written(style, {"city": long})))
    grown = [sum(len(span.more) for span in some) for some in spans]
    assert max(grown) <= 16  # one character sets the name of an argument free
    assert sum(grown) == len(json.dumps({"city": long}))


@pytest.mark.parametrize("style", SHAPES)
def test_a_call_that_is_cut_off_stays_a_call_with_what_there_is(style: str) -> None:
    text = written(style, PARSED)
    ((name, whole),) = calls_of(spans_of(style, [text]))
    begun = 0
    for end in range(len(format_of(style, plain().vocabulary).start), len(text)):
        calls = calls_of(spans_of(style, [text[:end]], cut=True))
        assert len(calls) <= 1 and begun <= len(calls)  # never content, and never less
        begun = len(calls)
        for other, arguments in calls:
            assert other == name and whole.startswith(arguments)
    assert begun == 1


@pytest.mark.parametrize("style", SHAPES)
def test_calls_without_arguments_are_empty_objects(style: str) -> None:
    ((name, arguments),) = calls_of(spans_of(style, list(written(style, {}))))
    assert (name, arguments) == ("get_weather", "{}")


@pytest.mark.parametrize("style", ["kimi_k2", "mistral", "minimax_m2"])
def test_several_calls_between_one_pair_of_marks(style: str) -> None:
    reader = format_of(style, plain().vocabulary)
    one, two = (
        written(style, {"city": city}, name).removeprefix(reader.start).removesuffix(reader.end)
        for city, name in (("Oslo", "get_weather"), ("Rome", "get"))
    )
    calls = calls_of(spans_of(style, list(f"{reader.start}{one}{two}{reader.end}")))
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("get_weather", {"city": "Oslo"}),
        ("get", {"city": "Rome"}),
    ]


def test_the_id_of_a_call_is_the_models_own() -> None:
    spans = spans_of("kimi_k2", [written("kimi_k2", {"city": "Oslo"})])
    (call,) = [call for some in spans for span in some for call in span.calls]
    assert call.id == "functions.get_weather:7"


@pytest.mark.parametrize("style", ["qwen3_coder", "minimax_m2"])
def test_a_text_that_is_the_word_null_is_what_the_parser_takes_it_for(style: str) -> None:
    for word, value in (("null", None), ("nullable", "nullable"), ("nul", "nul")):
        ((_, arguments),) = calls_of(spans_of(style, list(written(style, {"city": word}))))
        assert json.loads(arguments) == {"city": value}


@given(st.text(max_size=40), SIZES)
@settings(max_examples=tries(100), deadline=None)
def test_any_text_of_an_argument_comes_through(text: str, sizes: list[int]) -> None:
    for style in ("json_tools", "kimi_k2", "mistral"):
        pieces = pieces_of(written(style, {"city": text}), sizes)
        ((_, arguments),) = calls_of(spans_of(style, pieces))
        assert json.loads(arguments) == {"city": text}


def test_arguments_that_are_no_json_end_with_the_call() -> None:
    text = '<tool_call>{"name": "get", "arguments": {"city": [1}</tool_call>Well.'
    spans = [span for some in spans_of("json_tools", list(text)) for span in some]
    assert "".join(span.more for span in spans) == '{"city": [1}'
    assert "".join(span.text for span in spans if span.kind == "content") == "Well."
