"""Requests of the Responses API: what their fields mean, and how the wrong ones are refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from openai.types.responses import EasyInputMessageParam, response_create_params
from openai.types.responses import response_input_item_param as items_sent
from openai.types.responses.function_tool_param import FunctionToolParam
from openai.types.responses.response_function_tool_call_param import (
    ResponseFunctionToolCallParam,
)
from openai.types.responses.response_reasoning_item_param import ResponseReasoningItemParam
from pydantic import TypeAdapter

from mlxgen.engine import Options
from mlxgen.server.ask import Ask
from mlxgen.server.chat import parse_chat
from mlxgen.server.history import responses_history
from mlxgen.server.peers import RESPONSES as ELSEWHERE
from mlxgen.server.responses import Input, ResponsesRequest, parse_responses, rendered

from ..openai.kit import demo, refused

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
WEATHER: dict[str, Any] = {"type": "function", "name": "get_weather", "parameters": SCHEMA}


def call_of(**fields: Any) -> Ask:
    return parse_responses({"input": "Hello", **fields}, demo())


def options_of(**fields: Any) -> Options:
    [job] = call_of(**fields).jobs
    return job.options


def shown(given: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    mended = responses_history({"input": given}).body["input"]
    return rendered(instructions, TypeAdapter(Input).validate_python(mended))


def said(role: str, text: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_a_string_is_what_the_user_says() -> None:
    assert shown("Hi", "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_items_are_messages_and_an_answer_is_one_message_with_its_thoughts_and_calls() -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get_weather"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "mild"}
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    messages = shown(
        [
            said("developer", "Be brief."),
            {"role": "user", "content": "Weather?", "unknown": 1},
            {**thought, "content": [{"type": "reasoning_text", "text": "A call."}]},
            {**said("assistant", "I look.", "output_text"), "id": "msg_1", "status": "completed"},
            {**call, "arguments": '{"city": "Oslo"}'},
            result,
            {**thought, "summary": [{"type": "summary_text", "text": "So."}]},
            said("assistant", "Mild.", "output_text"),
        ]
    )
    function = {"name": "get_weather", "arguments": {"city": "Oslo"}}
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "A call.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "mild"},
        {"role": "assistant", "content": "Mild.", "reasoning_content": "So."},
    ]


def test_a_result_may_be_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    item = {"type": "function_call_output", "call_id": "c", "output": parts}
    assert shown([item])[0]["content"] == "ab"


def test_a_response_has_the_prompt_of_the_same_chat_completion() -> None:
    chat: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
        ],
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}],
        "reasoning_effort": "none",
    }
    [one] = parse_chat(chat, demo()).jobs
    [other] = call_of(
        instructions="Be brief.", input="Weather?", tools=[WEATHER], reasoning={"effort": "none"}
    ).jobs
    assert one.prompt == other.prompt


def test_one_call_or_any_object_can_be_asked_for() -> None:
    assert call_of(tools=[WEATHER], parallel_tool_calls=False).spec
    assert call_of(text={"format": {"type": "json_object"}}).spec
    assert not call_of(text={"format": {"type": "text"}}).spec
    [job] = call_of(max_tokens=7).jobs
    assert job.options.max_tokens == 7


def test_tools_that_are_not_functions_are_left_out_with_a_note(
    caplog: pytest.LogCaptureFixture,
) -> None:
    others = [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [WEATHER]}]
    with caplog.at_level(logging.INFO, "mlxgen.server"):
        [job] = call_of(tools=[others[0], WEATHER, others[1]]).jobs
    [plain] = call_of(tools=[WEATHER]).jobs
    assert job.prompt == plain.prompt
    notes = [record.fields for record in caplog.records if hasattr(record, "fields")]
    assert notes == [{"kinds": "namespace, web_search"}]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}
    assert call_of(tools=[WEATHER], tool_choice=allowed).jobs


def test_what_changes_nothing_is_accepted() -> None:
    [plain] = call_of().jobs
    call = call_of(
        store=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        client_metadata={"a": "b"},
        metadata={"a": "b"},
        user="u",
        service_tier="auto",
        safety_identifier="s",
        truncation="auto",
        background=False,
        previous_response_id=None,
        top_logprobs=0,
        max_tool_calls=3,
        reasoning={"summary": "auto", "effort": None},
        stream=True,
        stream_options={"include_obfuscation": False},
    )
    assert call.jobs == [plain]
    assert call.stream


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "stateless"),
        ({"conversation": "c"}, "conversation", "stateless"),
        ({"background": True}, "background", "leave it out"),
        ({"prompt": {"id": "p"}}, "prompt", "send instructions"),
        ({"top_logprobs": 3}, "top_logprobs", "/v1/chat/completions"),
        ({"include": ["message.output_text.logprobs"]}, "include", "/v1/chat/completions"),
        ({"messages": []}, "messages", "send input"),
        ({"input": None}, "input", "expected"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "input[0].type", "function_call"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].image_url",
            "takes no images",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "input[0].content[0].type",
            "input_text",
        ),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "mcp"}}, "tool_choice.type", "allowed_tools"),
    ],
)
def test_the_field_at_fault_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    error = refused(parse_responses, {"input": "Hello", **fields}, demo())
    assert error.param == param and words in error.message, error


def test_every_field_of_the_client_is_known() -> None:
    sent = response_create_params.ResponseCreateParamsStreaming.__annotations__
    assert sent.keys() <= ResponsesRequest.model_fields.keys() | ELSEWHERE.keys()


def test_items_that_the_client_types_are_read() -> None:
    thought: ResponseReasoningItemParam = {"id": "r", "type": "reasoning", "summary": []}
    call: ResponseFunctionToolCallParam = {
        "type": "function_call",
        "call_id": "c",
        "name": "get_weather",
        "arguments": "{}",
    }
    result: items_sent.FunctionCallOutput = {
        "type": "function_call_output",
        "call_id": "c",
        "output": "1",
    }
    message: EasyInputMessageParam = {"role": "user", "content": "Hello"}
    tool: FunctionToolParam = {
        "type": "function",
        "name": "get_weather",
        "parameters": SCHEMA,
        "strict": None,
        "description": "d",
    }
    assert call_of(input=[message, thought, call, result], tools=[tool]).jobs
