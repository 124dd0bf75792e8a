"""What holds for chat completions, messages and responses alike, from one table of their words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from mlxgen.server.messages import count_tokens
from mlxgen.server.served_model import ServedModel
from tests.fakes import byte_level_tokenizer

from .apis import APIS, CHAT, MESSAGES, RESPONSES, SCHEMA, Api
from .kit import demo, plain, refused, served
from .running import ASK, Running

EACH = pytest.mark.parametrize("api", APIS, ids=str)
MARK = {"cache_control": {"type": "ephemeral"}}
USER = {"role": "user", "content": "Hello"}
BUDGETS = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": None, "max": None}


def prompt(api: Api, model: ServedModel | None = None, /, **fields: Any) -> str:
    model = model or demo()
    return model.vocabulary.decode(api.call(model, **fields).jobs[0].prompt.tokens)


def refusal(api: Api, model: ServedModel | None = None, /, **fields: Any) -> Any:
    return refused(api.parse, api.body(**fields), model or demo())


# ---- refusals ------------------------------------------------------------------------------------


@EACH
def test_clients_recognise_a_prompt_that_is_too_long(api: Api) -> None:
    error = refusal(api, asked="word " * 3000)
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert "prompt is too long" in error.message and "2048 tokens" in error.message


# ---- what is harmless is not refused -------------------------------------------------------------


@EACH
def test_many_tools_and_long_names_are_taken(api: Api) -> None:
    names = ["f" * 256, *(f"mcp__server.tool-{i}" for i in range(300))]
    tools = [api.tool(name, description="d") for name in names]
    model = replace(demo(), max_context=1 << 20)
    assert all(name in prompt(api, model, tools=tools) for name in (names[0], names[-1]))
    assert api.call(model, tools=tools, tool_choice=api.choice(names[0])).spec
    assert refusal(api, model, tools=[api.tool("f" * 257)]).param


@EACH
def test_an_effort_reaches_a_template_that_has_grades(api: Api) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template += "{{ reasoning_effort }}"
    call = api.call(served(tokenizer), **api.effort("high"))
    assert served(tokenizer).vocabulary.decode(call.jobs[0].prompt.tokens).endswith("high")
    assert not call.ignored


@EACH
def test_a_thinking_budget_is_taken_by_every_api(api: Api) -> None:
    assert api.call(thinking_budget=7).jobs[0].options.thinking_budget == 7
    usual = replace(demo(), thinking_budget=9)
    assert api.call(usual).jobs[0].options.thinking_budget == 9
    unmoved = api.call(plain(), thinking_budget=7)
    assert unmoved.jobs == api.call(plain()).jobs and unmoved.ignored == ["thinking_budget"]


@EACH
def test_tools_for_a_model_without_a_parser_are_only_shown_to_it(api: Api) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template += "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    model = served(tokenizer)
    assert model.dialect.tools is None
    for more in ({}, {"tool_choice": api.choice("auto")}, api.form(SCHEMA)):
        assert prompt(api, model, tools=[api.tool()], **more).endswith("Read")
    assert bool(api.call(model, tools=[api.tool()], **api.form(SCHEMA)).spec)
    reply = api.call(model, tools=[api.tool()]).reply(id="id_1", created=1)
    assert reply is not None
    unseen = api.call(plain(), tools=[api.tool()])
    assert unseen.jobs == api.call(plain()).jobs and unseen.ignored == ["tools"]
    for choice in ("required", "Read"):
        error = refusal(api, model, tools=[api.tool()], tool_choice=api.choice(choice))
        assert error.param == "tool_choice"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_of_an_earlier_answer_reach_the_template(name: str) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template += "{{ messages[1].reasoning_content }}"
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    told: dict[Api, list[Any]] = {
        CHAT: [USER, {"role": "assistant", "content": None, name: "Hm."}, USER],
        MESSAGES: [USER, {"role": "assistant", "content": [thinking]}, USER],
        RESPONSES: [
            USER,
            {"type": "reasoning", "content": [{"type": "text", "text": "Hm."}]},
            USER,
        ],
    }
    for api, talk in told.items():
        assert prompt(api, served(tokenizer), asked=talk).endswith("Hm.")


@pytest.mark.parametrize("arguments", [r'{"pattern": "\d+"}', {"pattern": r"\d+"}])
def test_arguments_are_an_object_to_the_template_also_if_they_are_not_quite_json(
    arguments: Any,
) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template += "{{ messages[1].tool_calls[0].function.arguments['pattern'] }}"
    function = {"name": "f", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function}
    told: dict[Api, list[Any]] = {CHAT: [USER, {"role": "assistant", "tool_calls": [call]}]}
    if isinstance(arguments, str):
        told[RESPONSES] = [USER, {"type": "function_call", "call_id": "1", **function}]
    for api, talk in told.items():
        assert prompt(api, served(tokenizer), asked=talk).endswith(r"\d+")


# ---- from a server -------------------------------------------------------------------------------


@EACH
def test_a_server_streams_what_it_answers_whole_and_names_what_was_in_vain(
    api: Api, server: Running
) -> None:
    body = api.body(ASK, temperature=0, cache_control={}, model="any/name", **{api.limit: 60})
    whole = server.post(api.path, body)
    stream = server.post(api.path, {**body, **api.usage, "stream": True})
    lines = [line for line in stream.text.split("\n") if line.startswith("data: {")]
    other = api.streamed([json.loads(line.removeprefix("data: ")) for line in lines])
    one = api.whole(whole.json())
    assert one._replace(cached=0) == other._replace(cached=0) and one.model == "any/name"
    assert "Paris" in one.text and one.reason == "stop"
    for answer in (whole, stream):
        assert answer.headers["x-mlxgen-ignored"] == "cache_control"
    assert "x-mlxgen-ignored" not in server.post(api.path, api.body(**{api.limit: 1})).headers


UNHELD = {**SCHEMA, "not": {"required": ["other"]}}  # no grammar holds what must not be


@EACH
@pytest.mark.parametrize("choice", ["required", "auto", "Read"])
def test_calls_whose_schemas_no_grammar_holds_are_made_all_the_same(
    api: Api, server: Running, choice: str
) -> None:
    tools = [api.tool("Look"), api.tool(parameters=UNHELD, strict=True)]
    limit = {api.limit: 90}
    body = api.body(tools=tools, tool_choice=api.choice(choice), temperature=0, **limit)
    whole = server.post(api.path, body)
    assert whole.status_code == 200, whole.text
    calls = api.whole(whole.json()).calls
    assert calls if choice != "auto" else True
    assert all(set(given) == {"path"} for _, given in calls if given is not None)
    stream = server.post(api.path, {**body, **api.usage, "stream": True})
    lines = [line for line in stream.text.split("\n") if line.startswith("data: {")]
    assert api.streamed([json.loads(line.removeprefix("data: ")) for line in lines]).calls == calls


@EACH
def test_an_error_has_the_shape_of_the_api_also_for_a_stream(api: Api, server: Running) -> None:
    for stream in (False, True):
        answer = server.post(api.path, api.body(temperature=-1, stream=stream))
        assert answer.status_code == 400 and answer.headers["x-request-id"]
        assert answer.headers["content-type"] == "application/json"
        body = answer.json()
        assert body.pop("type", None) == ("error" if api is MESSAGES else None)
        error = body.pop("error")
        assert not body and error["type"] == "invalid_request_error"
        assert error["param"] == "temperature" and error["message"].startswith("temperature: ")


# ---- loops ---------------------------------------------------------------------------------------


# ---- Messages alone ------------------------------------------------------------------------------


def test_the_tokens_of_a_prompt_are_counted_as_they_would_be_run() -> None:
    body = {"messages": [USER], "tools": [MESSAGES.tool(cache_control=MARK)], "system": "Be kind"}
    run = MESSAGES.parse(body, demo()).jobs[0].prompt.tokens
    assert count_tokens(body, demo()) == {"input_tokens": len(run)}


def test_a_failure_is_an_error_of_the_api() -> None:
    event = MESSAGES.call(stream=True).reply(id="msg_1", created=0).fail(RuntimeError("x"))
    assert event["type"] == "error" and event["error"]["type"] == "api_error"
