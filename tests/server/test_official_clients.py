"""The official clients of the Responses API and of the Messages API, and what they read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from .running import ASK, WAIT, Running

if TYPE_CHECKING:
    import anthropic
    from openai import OpenAI

PLAIN: Any = {"effort": "none"}
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class Person(BaseModel):
    """What the text is parsed to."""

    name: str
    age: int


def test_a_response_is_answered_with_everything_that_the_types_promise(client: OpenAI) -> None:
    answer = client.responses.create(model="demo", input=ASK, temperature=0)
    assert answer.id.startswith("resp_") and answer.status == "completed"
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output_text == "The capital of France is Paris."
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert type(answer).model_validate(answer.model_dump()) == answer


def test_a_streamed_response_adds_up_to_the_complete_one(client: OpenAI) -> None:
    whole = client.responses.create(model="demo", input=ASK, temperature=0)
    with client.responses.stream(model="demo", input=ASK, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    said = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(said) == whole.output_text == final.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_conversation_goes_on_with_what_the_client_kept(client: OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    given: Any = {"model": "demo", "tools": [WEATHER], "tool_choice": "required"}
    with client.responses.stream(input=asked, temperature=0, **given) as stream:
        events = list(stream)
        first = stream.get_final_response()
    call = first.output[-1]
    assert call.type == "function_call" and call.name == "get_weather"
    parsed: Any = call.parsed_arguments
    assert isinstance(parsed, dict) and isinstance(parsed["city"], str)
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    kept: Any = [item.model_dump(exclude_none=True) for item in first.output]
    for item in kept:
        item.pop("parsed_arguments", None)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "mild"}
    second = client.responses.create(
        model="demo", input=[*asked, *kept, result], tools=[WEATHER], max_output_tokens=30
    )
    assert second.usage is not None and first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


def test_a_text_is_parsed_by_the_client(client: OpenAI) -> None:
    answer = client.responses.parse(
        model="demo",
        input="Extract the person record as JSON: Maria is 34 years old and lives in Lisbon.",
        reasoning=PLAIN,
        text_format=Person,
        temperature=0,
    )
    assert answer.output_parsed == Person(name="Maria", age=34)


def test_errors_before_a_stream_have_their_status(client: OpenAI) -> None:
    import openai

    with pytest.raises(openai.BadRequestError) as info:
        client.responses.create(model="demo", input=ASK, previous_response_id="resp_1", stream=True)
    assert info.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError) as info:
        client.responses.create(model="demo", input="word " * 3000, stream=True)
    assert info.value.code == "context_length_exceeded"


def test_events_are_named_and_nothing_follows_the_last(server: Running) -> None:
    with server.stream("/v1/responses", {"input": ASK, "temperature": 0}) as lines:
        said = [line for line in lines if line]
    assert said[0] == "event: response.created"
    assert said[-2] == "event: response.completed" and said[-1].startswith("data: {")


READ = {
    "name": "read",
    "input_schema": {
        "type": "object",
        "properties": {"path": {"enum": ["/a", "/b"]}},
        "required": ["path"],
    },
}
MODEL = "claude-of-some-name"


@pytest.fixture
def anthropic_client(server: Running) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(
        base_url=server.url, api_key="any", max_retries=0, timeout=WAIT
    ) as client:
        yield client


def test_a_message_and_its_stream_say_the_same(anthropic_client: anthropic.Anthropic) -> None:
    asked = {
        "model": MODEL,
        "max_tokens": 30,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    message = anthropic_client.messages.create(**asked)  # type: ignore[call-overload]
    assert message.type == "message" and message.usage.output_tokens > 0
    with anthropic_client.messages.stream(**asked) as stream:  # type: ignore[arg-type]
        final = stream.get_final_message()
    assert [b.model_dump() for b in final.content] == [b.model_dump() for b in message.content]
    assert final.stop_reason == message.stop_reason
    total = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    counted = anthropic_client.messages.count_tokens(model=MODEL, messages=asked["messages"])  # type: ignore[arg-type]
    assert counted.input_tokens == total


def test_a_tool_that_must_be_called_is_called(anthropic_client: anthropic.Anthropic) -> None:
    with anthropic_client.beta.messages.stream(
        model=MODEL,
        max_tokens=200,
        messages=[{"role": "user", "content": "Read it"}],
        tools=[READ],  # type: ignore[list-item]
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    ) as stream:
        message = stream.get_final_message()
    [use] = [block for block in message.content if block.type == "tool_use"]
    assert use.name == "read" and use.input in ({"path": "/a"}, {"path": "/b"})
    assert message.stop_reason == "tool_use"


def test_errors_are_those_that_the_client_knows(anthropic_client: anthropic.Anthropic) -> None:
    import anthropic

    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        anthropic_client.messages.create(
            model=MODEL,
            max_tokens=3,
            messages=[{"role": "user", "content": "Hello"}],
            extra_body={"temperature": -1},
        )
