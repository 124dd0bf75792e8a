"""What the demo model answers, through the engine: calls, forms, prefixes, and what is told of
tokens."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from tests.chat.kit import tool

from ..effort import ALL
from .apis import CHAT
from .kit import demo
from .running import Running, events, question

WEATHER = "What is the weather in Oslo?"
CAPITAL = "What is the capital of France?"
PERSON = "Extract the person record as JSON: Maria is 34 years old and lives in Lisbon."
GREEDY: dict[str, Any] = {"max_tokens": 200}
SILENT: dict[str, Any] = {**GREEDY, "chat_template_kwargs": {"enable_thinking": False}}
TOOLS = [tool(), tool("get_time", zone={"type": "string"}, hour={"type": "integer"})]


def chat(server: Running, text: str, **fields: Any) -> dict[str, Any]:
    """The only choice of an answer."""
    answer = server.chat(question(text, **fields))
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def called(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    """The calls of a choice, which are valid against their tools."""
    calls = []
    for call in choice["message"].get("tool_calls", ()):
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        (schema,) = (t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == name)
        jsonschema.validate(arguments, schema)
        calls.append((name, arguments))
    return calls


# ---- calls ---------------------------------------------------------------------------------------


def test_the_model_calls_a_tool_when_it_wants_to(server: Running) -> None:
    choice = chat(server, WEATHER, tools=[tool()], **SILENT)
    assert called(choice) == [("get_weather", {"city": "Oslo"})]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None


@pytest.mark.parametrize("text", [WEATHER, CAPITAL, "Tell me a story."])
@pytest.mark.parametrize("settings", [SILENT, GREEDY], ids=["silent", "thinking"])
@pytest.mark.parametrize("wanted", ["required", "get_time"])
def test_a_call_that_must_be_comes_whatever_was_asked(
    server: Running, text: str, settings: dict[str, Any], wanted: str
) -> None:
    fields = {**settings, "close_json": True, "parallel_tool_calls": False}
    choice = chat(server, text, tools=TOOLS, tool_choice=CHAT.choice(wanted), **fields)
    ((name, _),) = called(choice)
    assert choice["finish_reason"] == "tool_calls" and wanted in ("required", name)
    assert not choice["message"]["content"]


def test_a_call_that_the_length_cuts_off_is_a_call_with_what_there_is(server: Running) -> None:
    def cut(tokens: int) -> dict[str, Any]:
        fields = {**SILENT, "max_tokens": tokens, "tool_choice": "required"}
        return chat(server, WEATHER, tools=TOOLS, **fields)

    (call,) = cut(60)["message"]["tool_calls"]
    for tokens in range(2, 60, 1 if ALL else 4):
        choice = cut(tokens)
        if choice["finish_reason"] != "length":
            return
        assert not choice["message"]["content"]
        for part in choice["message"].get("tool_calls", ()):
            assert part["function"]["name"] == call["function"]["name"]
            assert call["function"]["arguments"].startswith(part["function"]["arguments"])
    raise AssertionError("no call was cut off")


def test_a_strict_tool_is_called_as_its_schema_wants(server: Running) -> None:
    strict = [{"type": "function", "function": {**t["function"], "strict": True}} for t in TOOLS]
    choice = chat(server, WEATHER, tools=strict, parallel_tool_calls=False, **GREEDY)
    assert len(called(choice)) == 1


def test_tools_and_a_form_leave_the_model_the_choice(server: Running) -> None:
    fields = {**SILENT, "tools": [tool()], "response_format": {"type": "json_object"}}
    assert called(chat(server, WEATHER, **fields))
    choice = chat(server, CAPITAL, **fields)
    assert called(choice) or isinstance(json.loads(choice["message"]["content"]), dict)


# ---- forms ---------------------------------------------------------------------------------------


def test_a_schema_holds_behind_the_thinking(server: Running) -> None:
    properties = {"name": {"type": "string"}, "age": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["name", "age"]}
    choice = chat(server, PERSON, **CHAT.form(schema), **GREEDY)
    assert choice["message"]["reasoning_content"]
    assert json.loads(choice["message"]["content"]) == {"name": "Maria", "age": 34}


@pytest.mark.parametrize(
    ("form", "fits"),
    [
        ({"choice": ["red", "green"]}, "red|green"),
        ({"regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"grammar": 'start: "x" "y"?'}, "xy?"),
        ({"grammar": 'root ::= "left" | "right"'}, "left|right"),
        ({"grammar": 'root ::= "The answer is " [A-Z] [a-z]{2,8} "."'}, "The answer is [A-Z].*"),
    ],
)
def test_forms_are_kept(server: Running, form: dict[str, Any], fits: str) -> None:
    for more in ({}, {"temperature": 1, "seed": 3}):
        choice = chat(server, CAPITAL, **{**SILENT, **form, **more})
        assert re.fullmatch(fits, choice["message"]["content"])


# ---- tokens --------------------------------------------------------------------------------------

TOLD: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}


def test_an_answer_is_taken_up_again_from_its_tokens(server: Running) -> None:
    fields = {**GREEDY, "return_token_ids": True, "json_schema": True}
    whole = chat(server, PERSON, **fields)
    ids, content = whole["token_ids"], whole["message"]["content"]
    for kept in (1, len(ids) // 2, len(ids) - 2):
        rest = chat(server, PERSON, prefix_tokens=ids[:kept], **fields)
        assert rest["token_ids"] == ids[kept:]
        assert content.endswith(rest["message"]["content"])


def test_tokens_that_the_grammar_forces_are_told_as_well(server: Running) -> None:
    form = {"regex": "Paris is the capital of France"}
    choice = chat(server, CAPITAL, **SILENT, **form, **TOLD)
    assert len(choice["tokens"]) == len(choice["token_ids"])
    assert all(token["part"] in ("content", None) for token in choice["tokens"])
    data = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert data.decode() == choice["message"]["content"] == form["regex"]


def test_several_answers_go_on_from_the_same_tokens_and_each_has_its_own(server: Running) -> None:
    """What the page's map asks for: a batch of ways on from one place."""
    form = {"regex": r'\{"name": "[A-Z][a-z]{2,7}"\}'}
    sampled = {**SILENT, **form, **TOLD, "temperature": 1, "seed": 5}
    kept = chat(server, PERSON, **sampled)["token_ids"][:4]
    answers: dict[int, list[dict[str, Any]]] = {}
    body = question(PERSON, prefix_tokens=kept, n=4, **{**sampled, "temperature": 1})
    with server.stream(CHAT.path, body) as lines:
        for event in events(lines):
            for choice in event["choices"]:
                answers.setdefault(choice["index"], []).append(choice)
    assert sorted(answers) == [0, 1, 2, 3]
    for parts in answers.values():
        tokens = [token for part in parts for token in part.get("tokens", ())]
        ids = [id for part in parts for id in part.get("token_ids", ())]
        assert [token["id"] for token in tokens] == ids
        assert [token["index"] for token in tokens] == list(range(4, 4 + len(ids)))
        assert all(len(token["top_logprobs"]) == 2 for token in tokens)
        assert parts[-1]["finish_reason"] == "stop"
        text = "".join(part["delta"].get("content") or "" for part in parts)
        assert re.fullmatch(r'[A-Z][a-z]{2,7}"\}', text), text


def test_a_prefix_is_refused_with_the_alternatives_that_are_not_allowed_and_no_others(
    server: Running,
) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    fields = {**SILENT, **TOLD, "json_schema": schema, "top_logprobs": 6}
    tokens = chat(server, PERSON, **fields)["tokens"]
    verdicts = set()
    for place, token in list(enumerate(tokens))[:: 1 if ALL else 3]:
        before = [each["id"] for each in tokens[:place]]
        for other in token["top_logprobs"]:
            if other["id"] in demo().vocabulary.eos:
                continue  # it ends the text, and is not part of a prefix
            allowed = other.get("allowed", True)
            verdicts.add(allowed)
            body = question(PERSON, **fields, prefix_tokens=[*before, other["id"]])
            answer = server.chat(body | {"max_tokens": place + 2})
            assert answer.is_success is allowed, (place, other, answer.text)
            if not allowed:
                param = answer.json()["error"]["param"]
                assert (answer.status_code, param) == (400, f"prefix_tokens[{place}]")
    assert verdicts == {True, False}
