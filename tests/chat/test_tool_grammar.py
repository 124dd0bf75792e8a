"""Calls that a grammar allows are calls that the format's parser reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from mlxgen.chat.calls.formats import FORMATS, CallFormat
from mlxgen.chat.calls.grammar import calls_grammar
from mlxgen.chat.calls.reader import ToolReader
from mlxgen.chat.dialect import UnsupportedError
from mlxgen.errors import GrammarError
from mlxgen.filters import Constraint, Lark

from . import kit
from .kit import calls_of, plain, walk

VOCABULARY = plain().vocabulary
SIZE = VOCABULARY.size


def function(name: str, parameters: Any, *, strict: bool = False) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": parameters, "strict": strict},
    }


BOX = {"type": "object", "properties": {"x": {"type": "number"}}}
WEATHER = function(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["c", "f"]},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "box": {"$ref": "#/$defs/Box"},
        },
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"Box": BOX},
    },
)
NOOP = function("no-op", {"type": "object", "properties": {}, "additionalProperties": False})
TOOLS = [WEATHER, NOOP]

# For each style: two calls in a row, as the models write them.
TEXTS = {
    "json_tools": [
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}'
        "\n</tool_call>",
        '\n<tool_call>{"name":"no-op","arguments":{}}</tool_call>',
    ],
    "qwen3_coder": [
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "\n<tool_call>\n<function=no-op>\n</function>\n</tool_call>",
    ],
    "glm47": [
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "\n<tool_call>no-op\n</tool_call>",
    ],
    "minimax_m2": [
        '<minimax:tool_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Oslo</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
        '\n<minimax:tool_call>\n<invoke name="no-op">\n</invoke>\n</minimax:tool_call>',
    ],
    "kimi_k2": [
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Oslo", "days": 3}<|tool_call_end|>'
        "<|tool_calls_section_end|>",
    ],
    "mistral": ['[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}]'],
}

# What ends an argument that is text.
CLOSING = {
    "qwen3_coder": "\n</parameter>\n",
    "glm47": "</arg_value>\n",
    "minimax_m2": "</parameter>\n",
}


# What ends a call behind an argument.
END = {
    "qwen3_coder": "\n</parameter>\n</function>\n</tool_call>",
    "glm47": "</arg_value>\n</tool_call>",
    "minimax_m2": "</parameter>\n</invoke>\n</minimax:tool_call>",
}


def takes(spec: Any, text: str) -> bool:
    tokens = kit.tokens_of(text, VOCABULARY)
    filter = spec.bind(VOCABULARY, SIZE)
    if filter.validate(tokens) < len(tokens):
        return False
    for token in tokens:
        filter.advance(token)
    return bool(filter.can_end())


def grammar_of(
    format: CallFormat, tools: Sequence[Any], *, many: bool, begun: bool = False
) -> Lark:
    functions = [tool["function"] for tool in tools]
    return calls_grammar(
        format,
        tools,
        VOCABULARY,
        names=[function["name"] for function in functions],
        strict=[function["name"] for function in functions if function.get("strict")],
        many=many,
        begun=begun,
    )


@pytest.mark.parametrize("style", TEXTS)
def test_what_a_model_writes_is_allowed_and_read(style: str) -> None:
    format, texts = FORMATS[style], TEXTS[style]
    assert format.enforced
    many = grammar_of(format, TOOLS, many=True)
    assert takes(many, texts[0])
    assert takes(many, "".join(texts))
    assert not takes(many, "Well, " + texts[0]) and not takes(many, "")
    one = grammar_of(format, TOOLS, many=False)
    assert takes(one, texts[0])
    assert len(texts) == 1 or not takes(one, "".join(texts))
    rest = grammar_of(format, TOOLS, many=True, begun=True)
    assert takes(rest, "".join(texts)[len(format.start) :])
    reader = ToolReader(format, TOOLS)
    (call,) = calls_of(reader, texts[0])
    assert call.name == "get_weather"
    assert json.loads(call.arguments) == {"city": "Oslo", "days": 3}
    for text in texts[1:]:
        (call,) = calls_of(reader, text)
        assert (call.name, call.arguments) == ("no-op", "{}")


@pytest.mark.parametrize("style", TEXTS)
def test_wrong_names_and_arguments_are_not_allowed(style: str) -> None:
    spec = grammar_of(FORMATS[style], TOOLS, many=True)
    text = TEXTS[style][0]
    assert not takes(spec, text.replace("get_weather", "get_whether"))
    assert not takes(spec, text.replace("3", "three"))
    assert not takes(spec, text.replace("days", "daze"))


@pytest.mark.parametrize("strict", [False, True])
def test_arguments_have_no_keys_that_nobody_asked_for(strict: bool) -> None:
    format = FORMATS["json_tools"]

    def allows(parameters: Any, arguments: str) -> bool:
        tools = [function("f", parameters, strict=strict)]
        spec = grammar_of(format, tools, many=False)
        return takes(spec, f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>')

    for nothing in (None, {}, {"type": "object"}, {"type": "object", "properties": {}}):
        assert allows(nothing, "{}") and not allows(nothing, '{"city": "Do"}')
    city: dict[str, Any] = {"properties": {"city": {"properties": {"name": {}}}}}
    assert allows(city, '{"city": {"name": 1}}')
    assert not allows(city, '{"town": 1}') and not allows(city, '{"city": {"zip": 1}}')
    assert allows({**city, "additionalProperties": True}, '{"town": 1}')
    assert not allows({**city, "additionalProperties": True}, '{"city": {"zip": 1}}')
    assert allows({"type": "object", "additionalProperties": True}, '{"town": 1}')
    chosen = {"anyOf": [city, {"properties": {"place": {}}}]}
    assert allows(chosen, '{"place": 1}') and not allows(chosen, '{"place": 1, "city": {}}')
    holder = {"$ref": "#/$defs/Args", "$defs": {"Args": city}}
    assert allows(holder, '{"city": {"name": 1}}') and not allows(holder, '{"town": 1}')


@pytest.mark.parametrize("style", CLOSING)
def test_arguments_between_tags_have_no_keys_that_nobody_asked_for(style: str) -> None:
    tools = [function("f", {"properties": {"box": {"$ref": "#/$defs/Box"}}, "$defs": {"Box": BOX}})]
    format = FORMATS[style]
    spec = grammar_of(format, tools, many=False)
    text = TEXTS[style][0].replace("get_weather", "f")
    begun, _, rest = text.partition("city")
    for box, good in (('{"x": 1}', True), ('{"y": 1}', False)):
        assert takes(spec, f"{begun}box{rest.partition('Oslo')[0]}{box}{END[style]}") == good


def test_a_schema_that_cannot_be_closed_is_refused_with_its_place() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"properties": {"x": deep}}
    with pytest.raises(GrammarError) as caught:
        grammar_of(FORMATS["json_tools"], [function("f", deep)], many=False)
    assert caught.value.field == "tools[0].function.parameters"


@pytest.mark.parametrize("style", TEXTS)
def test_whatever_a_grammar_allows_is_read(style: str) -> None:
    format = FORMATS[style]
    reader = ToolReader(format, TOOLS)
    spec = grammar_of(format, TOOLS, many=False)
    for seed in range(16):
        text = VOCABULARY.decode(
            walk(Constraint([spec], VOCABULARY, SIZE), VOCABULARY, seed, CLOSING.get(style, ""))
        )
        calls = calls_of(reader, text)
        assert len(calls) == 1, text
        arguments = json.loads(calls[0].arguments)
        assert isinstance(arguments, dict)
        assert "city" in arguments if calls[0].name == "get_weather" else not arguments, text
        assert isinstance(arguments.get("days", 0), int)
        assert arguments.get("unit", "c") in ("c", "f")


def test_texts_between_tags_may_be_anything_but_the_tag() -> None:
    spec = grammar_of(FORMATS["qwen3_coder"], TOOLS, many=True)
    head, tail = (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n",
        "</function>\n</tool_call>",
    )
    assert takes(spec, f'{head}New\n"York" </param\n</parameter>\n{tail}')
    assert takes(spec, f"{head}\n</parameter>\n<parameter=unit>\nc\n</parameter>\n{tail}")
    assert not takes(spec, f"{head}x\n</parameter>\n<parameter=unit>\nk\n</parameter>\n{tail}")


def test_parameters_that_were_left_out_are_none() -> None:
    bare = {"type": "function", "function": {"name": "f"}}
    spec = grammar_of(FORMATS["json_tools"], [bare], many=False)
    assert takes(spec, '<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    assert not takes(spec, '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>')


def test_strict_texts_with_a_form_are_refused_between_tags() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x+"}}}
    strict = [function("f", schema, strict=True)]
    with pytest.raises(UnsupportedError) as info:
        grammar_of(FORMATS["qwen3_coder"], strict, many=False)
    assert info.value.field == "tools[0].function.parameters.properties.a"
    grammar_of(FORMATS["json_tools"], strict, many=False)
