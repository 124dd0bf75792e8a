"""Forms of which a grammar holds only a part: answers fit the whole schema, or are an error."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from mlxgen.server.fields import json_form

from .apis import APIS, CHAT, ENDPOINTS
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
CLIENTS = {str(api): api for api in APIS}
EACH = pytest.mark.parametrize("api", ["completions", *CLIENTS])


def answered(server: Running, api: str, schema: Any, temperature: float) -> Any:
    """The answer to a request for JSON of a schema, and its text."""
    body: dict[str, Any]
    if api == "completions":
        body = {"prompt": "JSON: ", "json_schema": schema, "max_tokens": 120}
    else:
        client = CLIENTS[api]
        asked = client.body("Numbers, please.", thinking_budget=0, **{client.limit: 120})
        body = asked | client.form(schema)
    answer = server.post(ENDPOINTS[api].path, body | {"temperature": temperature, "seed": 3})
    if not answer.is_success:
        return answer, ""
    if api == "completions":
        return answer, answer.json()["choices"][0]["text"]
    return answer, CLIENTS[api].whole(answer.json()).text


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", SCHEMAS)
@EACH
def test_an_answer_fits_the_whole_schema_or_is_an_error(
    server: Running, api: str, name: str, temperature: float
) -> None:
    answer, text = answered(server, api, SCHEMAS[name], temperature)
    if answer.is_success:
        jsonschema.validate(json.loads(text), SCHEMAS[name])
    else:
        assert answer.status_code == 400 and answer.json()["error"]["param"]


def test_a_stream_has_nothing_of_an_answer_that_does_not_fit(server: Running) -> None:
    never = {"type": "array", "items": {"const": 1}, "minItems": 2, "uniqueItems": True}
    form = CHAT.form({**never, "maxItems": 2})
    body = question("Numbers, please.", max_tokens=120, thinking_budget=0, **form)
    with server.stream(CHAT.path, body) as lines:
        got = list(events(lines))
    assert "error" in got[-1]
    said = [c["delta"].get("content") or "" for e in got[:-1] for c in e.get("choices", ())]
    assert "".join(said).strip() == ""


LARGE = [175928847299117063, 9007199254740993]


@EACH
def test_integers_are_exact_and_the_header_names_what_is_left_out(
    server: Running, api: str
) -> None:
    low = {"type": "integer", "minimum": LARGE[0], "maximum": LARGE[0] + 1}
    path = {"type": "string", "format": "path", "maxLength": 3}
    schema = {
        "type": "object", "required": ["id", "low", "p"], "additionalProperties": False,
        "properties": {"id": {"enum": LARGE}, "low": low, "p": path},
    }  # fmt: skip
    answer, text = answered(server, api, schema, 1)
    value = json.loads(text)
    assert value["id"] in LARGE and LARGE[0] <= value["low"] <= LARGE[0] + 1
    assert "format=path" in answer.headers["x-mlxgen-ignored"]


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


def arguments_of(server: Running, schema: Any, stream: bool, temperature: float) -> Any:
    """The arguments of the one call, and the headers; None: the request failed and said why."""
    tools = [CHAT.tool("f", parameters=schema, strict=True)]
    body = CHAT.body(
        "Numbers, please.",
        tools=tools,
        tool_choice="required",
        max_tokens=200,
        seed=4,
        temperature=temperature,
        thinking_budget=0,
    )
    answer = server.post(CHAT.path, {**body, **CHAT.usage, "stream": stream})
    if not stream:
        if not answer.is_success:
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "tools"
            return None, answer.headers
        said = CHAT.whole(answer.json())
    else:
        got = list(events(iter(answer.text.split("\n"))))
        if "error" in got[-1]:
            return None, answer.headers
        said = CHAT.streamed(got)
    ((_, arguments),) = said.calls
    return arguments, answer.headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0, 1])
def test_arguments_of_a_strict_tool_fit_its_whole_schema_or_are_an_error(
    server: Running, stream: bool, temperature: float
) -> None:
    arguments, _ = arguments_of(server, TOOL, stream, temperature)
    if arguments is not None:
        jsonschema.validate(arguments, TOOL)
    never = json.loads(json.dumps(TOOL).replace("[1, 2, 3]", "[1]"))
    assert arguments_of(server, never, stream, temperature)[0] is None


def test_the_header_names_what_is_left_out_of_a_strict_tool(server: Running) -> None:
    schema = {**TOOL, "properties": {"n": {"type": "string", "format": "path", "maxLength": 3}}}
    _, headers = arguments_of(server, schema, False, 1)
    assert "f:format=path" in headers["x-mlxgen-ignored"]
