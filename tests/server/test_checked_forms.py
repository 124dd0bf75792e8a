"""Forms of which a grammar holds only a part: answers fit the whole schema, or are an error."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from mlxgen.filters import Constraint
from mlxgen.server.fields import json_form

from .kit import demo
from .running import Running, events, question

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMAS: dict[str, Any] = {
    "unique items": {
        "type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 3, "maxItems": 3,
        "uniqueItems": True,
    },
    "contains": {
        "type": "array", "items": DIGIT, "contains": {"const": 3}, "minItems": 1, "maxItems": 2,
    },
    "names by pattern": {
        "type": "object", "propertyNames": {"pattern": "^[a-z]{2}$"},
        "additionalProperties": DIGIT, "minProperties": 1, "maxProperties": 2,
    },
    "names of a choice": {
        "type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": DIGIT,
        "minProperties": 1,
    },
    "one of two that overlap": {
        "type": "object", "required": ["n"], "additionalProperties": False,
        "properties": {"n": {"oneOf": [{**DIGIT, "maximum": 5}, {**DIGIT, "minimum": 4}]}},
    },
    "not": {
        "type": "object", "properties": {"n": {**DIGIT, "not": {"enum": [1, 2, 3]}}},
        "required": ["n"], "additionalProperties": False,
    },
    "a pattern that looks ahead": {
        "type": "object", "required": ["s"], "additionalProperties": False,
        "properties": {"s": {"type": "string", "pattern": "^(?!ab)[a-c]{2}$", "maxLength": 3}},
    },
}  # fmt: skip
APIS: dict[str, tuple[str, Any]] = {
    "chat": (
        "/v1/chat/completions",
        lambda schema: {
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}
        },
    ),
    "completion": ("/v1/completions", lambda schema: {"json_schema": schema}),
    "messages": (
        "/v1/messages",
        lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    ),
    "responses": (
        "/v1/responses",
        lambda schema: {
            "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}},
        },
    ),
}


def body_of(api: str, schema: Any, temperature: float) -> dict[str, Any]:
    asked = question("Numbers, please.")["messages"]
    said = {"chat": {"messages": asked}, "messages": {"messages": asked}}
    prompt = {"completion": {"prompt": "JSON: "}, "responses": {"input": "Numbers, please."}}
    limit = "max_output_tokens" if api == "responses" else "max_tokens"
    off: dict[str, Any] = {} if api == "completion" else {"thinking_budget": 0}
    whole = {**(said | prompt)[api], limit: 120, "temperature": temperature, "seed": 3, **off}
    return {**whole, **APIS[api][1](schema)}


def text_of(api: str, answer: Any) -> str:
    if api == "messages":
        return "".join(block.get("text", "") for block in answer["content"])
    if api == "responses":
        items = [item for item in answer["output"] if item["type"] == "message"]
        return "".join(part["text"] for item in items for part in item["content"])
    choice = answer["choices"][0]
    text: str = choice["text"] if api == "completion" else choice["message"]["content"]
    return text


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("api", APIS)
def test_an_answer_fits_the_whole_schema_or_is_an_error(
    server: Running, api: str, name: str, temperature: float
) -> None:
    schema = SCHEMAS[name]
    answer = server.post(APIS[api][0], body_of(api, schema, temperature))
    if answer.status_code == 200:
        jsonschema.validate(json.loads(text_of(api, answer.json())), schema)
    else:
        assert answer.status_code == 400 and "fits the whole schema" in answer.text


def test_a_stream_has_nothing_of_an_answer_that_does_not_fit(server: Running) -> None:
    never = {"type": "array", "items": {"const": 1}, "minItems": 2, "uniqueItems": True}
    never["maxItems"] = 2
    with server.stream("/v1/chat/completions", body_of("chat", never, 0)) as lines:
        got = list(events(lines))
    assert "error" in got[-1]
    said = [c["delta"].get("content") or "" for e in got[:-1] for c in e.get("choices", ())]
    assert "".join(said).strip() == ""


def checks(schema: Any) -> bool:
    spec = json_form("response_format", schema).spec
    return Constraint([spec], demo().vocabulary, demo().vocab_size).checks


def test_what_a_grammar_holds_is_delivered_as_it_comes() -> None:
    assert not checks({"type": "object", "properties": {"a": {"pattern": "^a+$"}}})
    assert checks(SCHEMAS["unique items"]) and checks(SCHEMAS["one of two that overlap"])


def test_the_header_names_what_is_left_out(server: Running) -> None:
    schema = {"type": "object", "required": ["p"], "additionalProperties": False}
    schema["properties"] = {"p": {"type": "string", "format": "path", "maxLength": 3}}
    for api in APIS:
        answer = server.post(APIS[api][0], body_of(api, schema, 0))
        assert answer.status_code == 200, answer.text
        assert "format=path" in answer.headers["x-mlxgen-ignored"]


LARGE = [175928847299117063, 9007199254740993]


@pytest.mark.parametrize("api", APIS)
def test_integers_that_no_float_holds_are_exact(server: Running, api: str) -> None:
    schema = {
        "type": "object", "required": ["id", "low"], "additionalProperties": False,
        "properties": {"id": {"enum": LARGE}, "low": {"type": "integer", "minimum": LARGE[0],
                                                      "maximum": LARGE[0] + 1}},
    }  # fmt: skip
    answer = server.post(APIS[api][0], body_of(api, schema, 1))
    assert answer.status_code == 200, answer.text
    value = json.loads(text_of(api, answer.json()))
    assert value["id"] in LARGE and LARGE[0] <= value["low"] <= LARGE[0] + 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "format": "path", "maxLength": 3},
        {"type": "string", "format": "binary"},
        {"type": "integer", "format": "int64", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},
        {"type": "string", "minLength": 2.0, "maxLength": 3.0},
        {"type": "array", "minContains": 1},
        {"then": {"type": "string"}, "else": {"type": "integer"}},
        {"type": "object", "properties": {"format": {"const": {"format": "path"}}}},
    ],
)
def test_notes_and_whole_floats_are_not_refused(schema: Any) -> None:
    form = json_form("response_format", schema)
    vocabulary = demo().vocabulary
    assert form.spec.bind(vocabulary, demo().vocab_size) is not None


TOOL: dict[str, Any] = {
    "type": "object", "required": ["n"], "additionalProperties": False,
    "properties": {"n": {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2,
                         "maxItems": 2, "uniqueItems": True}},
}  # fmt: skip


def call_body(schema: Any, stream: bool = False, temperature: float = 1) -> dict[str, Any]:
    function = {"name": "f", "parameters": schema, "strict": True}
    return {
        "messages": question("Numbers, please.")["messages"], "max_tokens": 200, "seed": 4,
        "tools": [{"type": "function", "function": function}], "tool_choice": "required",
        "temperature": temperature, "thinking_budget": 0, "stream": stream,
    }  # fmt: skip


def arguments_of(server: Running, body: dict[str, Any]) -> str | None:
    """The arguments of the one call; None: the request failed and said why."""
    if not body["stream"]:
        answer = server.post("/v1/chat/completions", body)
        if answer.status_code != 200:
            assert "the arguments of f do not fit" in answer.text
            return None
        (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
        return str(call["function"]["arguments"])
    with server.stream("/v1/chat/completions", body) as lines:
        got = list(events(lines))
    if "error" in got[-1]:
        return None
    deltas = [c["delta"] for e in got for c in e.get("choices", ())]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    return "".join(call["function"].get("arguments") or "" for call in calls)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0, 1])
def test_arguments_of_a_strict_tool_fit_its_whole_schema_or_are_an_error(
    server: Running, stream: bool, temperature: float
) -> None:
    text = arguments_of(server, call_body(TOOL, stream, temperature))
    if text is not None:
        jsonschema.validate(json.loads(text), TOOL)
    never = json.loads(json.dumps(TOOL).replace("[1, 2, 3]", "[1]"))
    assert arguments_of(server, call_body(never, stream, temperature)) is None


def test_the_header_names_what_is_left_out_of_a_strict_tool(server: Running) -> None:
    schema = {**TOOL, "properties": {"n": {"type": "string", "format": "path", "maxLength": 3}}}
    answer = server.post("/v1/chat/completions", call_body(schema))
    assert "f:format=path" in answer.headers["x-mlxgen-ignored"]
