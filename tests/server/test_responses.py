"""The Responses API: what requests mean, which are refused, and the events of replies."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import (
    EasyInputMessageParam,
    ResponseStreamEvent,
    response_create_params,
)
from openai.types.responses import Response as Whole
from openai.types.responses import response_input_item_param as items_sent
from openai.types.responses.function_tool_param import FunctionToolParam
from openai.types.responses.response_function_tool_call_param import (
    ResponseFunctionToolCallParam,
)
from openai.types.responses.response_reasoning_item_param import ResponseReasoningItemParam
from pydantic import TypeAdapter

from mlxgen.engine import Options
from mlxgen.errors import DeadEndError, ModelError, QueueFullError
from mlxgen.server.ask import Ask
from mlxgen.server.chat import parse_chat
from mlxgen.server.errors import RequestError
from mlxgen.server.history import responses_history
from mlxgen.server.peers import RESPONSES as ELSEWHERE
from mlxgen.server.reply import Event, Reply
from mlxgen.server.responses import Input, ResponsesRequest, parse_responses, rendered

from .apis import ANSWERS, READ_CALL, RESPONSES, answers, spoken
from .kit import demo, news, read_again, refused

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


EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ENDS = ("response.completed", "response.incomplete")


def reply_to(stream: bool, **fields: Any) -> Reply:
    return RESPONSES.call(stream=stream, **fields).reply(id="resp_1", created=1)


def whole(says: str, finish: Any = "stop", **fields: Any) -> Any:
    return answers(RESPONSES, says, finish=finish, **fields)[1]


def check_sequence(events: list[Event]) -> list[Event]:
    """The laws of a stream; returns the items that are done."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    items: list[Event] = []
    opened: Event | None = None
    texts: list[str] = []
    part: Event | None = None
    for event in events[2:-1]:
        kind = event["type"]
        assert event["output_index"] == len(items), "one item after another"
        if kind == "response.output_item.added":
            assert opened is None
            opened, texts = event["item"], []
            assert opened["status"] == "in_progress"
            continue
        assert opened is not None
        if kind == "response.output_item.done":
            assert event["item"]["id"] == opened["id"] and part is None
            assert event["item"]["type"] == opened["type"]
            items.append(event["item"])
            opened = None
            continue
        assert event["item_id"] == opened["id"]
        assert event.get("content_index", event.get("summary_index", 0)) == 0
        if kind.endswith("part.added"):
            assert part is None
            part = event["part"]
        elif kind.endswith("part.done"):
            assert event["part"] == {**(part or {}), "text": "".join(texts)}
            part = None
        elif kind.endswith(".delta"):
            assert event["delta"]
            texts.append(event["delta"])
        else:
            assert kind.endswith(".done"), kind
            assert event.get("text", event.get("arguments")) == "".join(texts)
    assert opened is None, "every item is done"
    assert len({item["id"] for item in items}) == len(items)
    return items


@given(
    st.sampled_from(sorted(ANSWERS)),
    st.lists(st.integers(0, 9), max_size=4),
    st.sampled_from(["stop", "length"]),
    st.sampled_from([None, "auto"]),
)
def test_a_stream_keeps_its_laws_and_says_what_the_whole_says(
    name: str, delays: list[int], finish: Any, summary: str | None
) -> None:
    fields: Any = {"reasoning": {"summary": summary}}
    events, answer = answers(RESPONSES, ANSWERS[name], delays, finish, **fields)
    for event in events:
        EVENT.validate_python(json.loads(json.dumps(event, allow_nan=False)))
    items = check_sequence(events)
    last = events[-1]
    assert last["type"] in ENDS and last["response"]["output"] == items
    assert last["response"] == answer
    Whole.model_validate(json.loads(json.dumps(answer, allow_nan=False)))


def test_thoughts_text_and_calls_are_items_of_their_own() -> None:
    answer = whole(ANSWERS["all of it"])
    thought, text, one, two = answer["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "A file."}]
    assert thought["summary"] == []
    assert text["content"][0]["text"] == "I read." and text["role"] == "assistant"
    for call in (one, two):
        assert call["type"] == "function_call" and call["name"] == "Read"
        assert json.loads(call["arguments"]) == {"path": "/a"}
    assert one["call_id"] != two["call_id"]
    assert answer["status"] == "completed" and answer["incomplete_details"] is None


def test_thoughts_are_the_summary_if_one_is_asked_for() -> None:
    thought, _ = whole(ANSWERS["thoughts"], reasoning={"summary": "auto"})["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "A greeting."}]
    assert "content" not in thought


def test_an_answer_that_is_cut_off_is_incomplete_and_so_is_its_last_item() -> None:
    *_, last = answers(RESPONSES, "Hello the", finish="length")[0]
    assert last["type"] == "response.incomplete"
    response = last["response"]
    assert response["status"] == response["output"][-1]["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    *others, cut = whole(READ_CALL[:50], "length")["output"]
    assert not others and cut["type"] == "function_call" and cut["status"] == "incomplete"


def test_the_usage_tells_cached_and_reasoning_tokens() -> None:
    answer = whole(ANSWERS["thoughts"])
    told = answer["usage"]
    assert told["input_tokens"] == 7 and told["input_tokens_details"]["cached_tokens"] == 2
    assert told["output_tokens"] == 5 and told["total_tokens"] == 12
    assert told["output_tokens_details"]["reasoning_tokens"] > 0


def test_a_response_says_what_it_was_asked_for_and_what_was_taken_of_it() -> None:
    answer = whole(
        "Hi",
        instructions="Be brief.",
        tools=[RESPONSES.tool(), {"type": "web_search"}],
        metadata={"a": "b"},
        temperature=0.5,
        store=True,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    )
    assert answer["instructions"] == "Be brief." and answer["metadata"] == {"a": "b"}
    assert [tool["name"] for tool in answer["tools"]] == ["Read"]
    assert answer["temperature"] == 0.5 and answer["store"] is False
    assert answer["text"]["format"]["schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (
            RequestError.at("input", "too long", "context_length_exceeded"),
            "context_length_exceeded",
        ),
        (DeadEndError("nothing"), "server_error"),
        (QueueFullError("full"), "rate_limit_exceeded"),
        (RequestError("late", status=504, code="timeout"), "server_error"),
        (RequestError.at("tools", "no", "invalid_grammar"), "invalid_prompt"),
        (ModelError("broken"), "server_error"),
        (ValueError("secret"), "server_error"),
    ],
)
def test_a_stream_that_fails_ends_with_a_code_that_agents_know(error: Exception, code: str) -> None:
    reply = reply_to(True)
    events: list[Any] = [*reply.start(), *reply.take(news(spoken("Hello there!")[0]))]
    events.append(reply.fail(error))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == code
    assert "secret" not in json.dumps(last)


def test_a_sign_of_life_has_a_number_as_well() -> None:
    reply = reply_to(True)
    [event] = read_again(reply.alive())
    assert event["type"] == "response.in_progress" and event["sequence_number"] == 2
