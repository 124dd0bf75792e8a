"""Every field of every body: wrong types are refused by name, null means default."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel

from mlxgen.server.chat import ChatRequest, parse_chat
from mlxgen.server.completions import CompletionRequest, parse_completion
from mlxgen.server.errors import RequestError

from .kit import HELLO, demo, refused

CHAT: dict[str, Any] = {"messages": HELLO}
TEXT: dict[str, Any] = {"prompt": "Hello"}
PART, CHOSEN = "messages[0].content[0]", "tool_choice"
KINDS: dict[str, tuple[Any, type[BaseModel], dict[str, Any]]] = {
    "chat": (parse_chat, ChatRequest, CHAT),
    "completion": (parse_completion, CompletionRequest, TEXT),
}
VALUES: list[Any] = [
    True,
    False,
    0,
    -1,
    7,
    10**30,
    -0.5,
    1.5,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "7",
    "auto",
    "\x01",
    [],
    [0],
    ["a"],
    [[]],
    [None],
    [True],
    [1.5],
    [{}],
    {},
    {"a": 1},
    {"": None},
    {"type": "nothing"},
    {"1": "2"},
]
FIELDS = [
    pytest.param(kind, field.alias or name, id=f"{kind} {name}")
    for kind, (_, model, _) in KINDS.items()
    for name, field in model.model_fields.items()
]
# What the schema cannot say: each of these refuses some values of the right type.
CHECKED_FURTHER = {
    "suffix": "the tokenizer has marks for it",
    "logit_bias": "keys are token ids",
    "stop_token_ids": "in the vocabulary",
    "prefix_tokens": "in the vocabulary",
    "min_tokens": "no more than max_tokens",
    "xtc_threshold": "in range",
    "prompt": "not empty, and in the vocabulary",
    "close_json": "needs a constraint",
    "check": "one of the operator's",
    "tool_choice": "needs tools",
    "top_logprobs": "needs logprobs",
    "continue_final_message": "needs an answer to go on with",
    "add_generation_prompt": "needs continue_final_message to be false",
    "chat_template_kwargs": "names of variables",
    "choice": "texts",
    "max_tokens": "more than the prefix",
    "program": "a registered one",
    "controller": "a registered one",
    "hooks": "registered ones",
    "arguments": "those of what is named",
}


def schema_of(model: type[BaseModel], name: str) -> Any:
    whole = model.model_json_schema()
    return {**whole["properties"][name], "$defs": whole.get("$defs", {})}


def fits(value: Any, schema: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def is_finite(value: Any) -> bool:
    return "NaN" not in json.dumps(value) and "Infinity" not in json.dumps(value)


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_a_value_of_the_wrong_type_is_refused_and_a_right_one_is_taken(
    kind: str, name: str
) -> None:
    parse, model, base = KINDS[kind]
    schema = schema_of(model, name)
    for value in VALUES:
        body = {**base, name: value}
        right = fits(value, schema) and is_finite(value)
        if not right:
            error = refused(parse, body, demo())
            assert error.param is not None, value
            assert error.param == name or error.param.startswith((f"{name}.", f"{name}[")), value
            continue
        try:
            parse(body, demo())
        except RequestError as error:
            assert name in CHECKED_FURTHER, (value, error)
            assert (error.param or "").startswith(name) or error.param == "prompt"


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_null_means_default(kind: str, name: str) -> None:
    parse, model, base = KINDS[kind]
    if model.model_fields[name if name != "schema" else "schema_"].is_required():
        assert refused(parse, {**base, name: None}, demo()).param == name
        return
    assert parse({**base, name: None}, demo()).jobs == parse(base, demo()).jobs


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_has_a_description_for_every_field(kind: str) -> None:
    _, model, _ = KINDS[kind]
    for name, field in model.model_fields.items():
        assert field.description, name


def test_an_unknown_field_is_refused_with_the_one_that_was_meant() -> None:
    strict = replace(demo(), strict_fields=True)
    error = refused(parse_chat, {**CHAT, "temprature": 1}, strict)
    assert error.param == "temprature" and "did you mean temperature?" in error.message
    assert error.code == "unknown_parameter"
    nested = refused(parse_chat, {**CHAT, "stream_options": {"include": True}}, demo())
    assert nested.param == "stream_options.include"


def test_an_unknown_field_is_ignored_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = replace(demo(), unknown_fields=set())
    with caplog.at_level(logging.WARNING, "mlxgen.server"):
        for _ in range(3):
            call = parse_chat({**CHAT, "temprature": 1, "enable_search": False}, model)
            assert {"temprature", "enable_search"} <= set(call.ignored)
    told = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert [each["field"] for each in told] == ["temprature", "enable_search"]
    assert told[0]["did_you_mean"] == "temperature"


def test_a_huge_value_makes_no_huge_message() -> None:
    for value in ("x" * 10**6, ["y" * 10**6], {"z" * 10**6: 1}, int("9" * 4000)):
        for name in ("temperature", "stop", "tools", "model", "response_format"):
            refused(parse_chat, {**CHAT, name: value}, demo())
