"""The official clients: what they send, what they read, and the errors that they know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from .running import ASK, WAIT, Running

if TYPE_CHECKING:
    import anthropic
    from openai import OpenAI

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "name": "get_weather", "strict": True, "parameters": CITY}
USER: Any = [{"role": "user", "content": ASK}]
GREEDY: Any = {"model": "demo", "temperature": 0}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[OpenAI]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def anthropic_client(server: Running) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(
        base_url=server.url, api_key="any", max_retries=0, timeout=WAIT
    ) as client:
        yield client


def test_a_streamed_chat_adds_up_to_the_complete_one(client: OpenAI) -> None:
    whole = client.chat.completions.create(messages=USER, **GREEDY)
    with client.chat.completions.stream(
        messages=USER, stream_options={"include_usage": True}, **GREEDY
    ) as stream:
        final = stream.until_done().get_final_completion()
    assert whole.id.startswith("chatcmpl-") and whole.usage is not None and final.usage is not None
    (one,), (other,) = whole.choices, final.choices
    assert one.message.content == other.message.content == "The capital of France is Paris."
    assert one.finish_reason == other.finish_reason == "stop"
    assert final.usage.completion_tokens == whole.usage.completion_tokens


def test_a_response_is_answered_with_everything_that_the_types_promise(client: OpenAI) -> None:
    answer = client.responses.create(input=ASK, **GREEDY)
    assert answer.id.startswith("resp_") and answer.status == "completed"
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert type(answer).model_validate(answer.model_dump()) == answer
    with client.responses.stream(input=ASK, **GREEDY) as stream:
        assert stream.get_final_response().output_text == answer.output_text


def test_a_conversation_goes_on_with_what_the_client_kept(client: OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    given: Any = {"tools": [WEATHER], "tool_choice": "required", **GREEDY}
    with client.responses.stream(input=asked, **given) as stream:
        first = stream.get_final_response()
    call = first.output[-1]
    assert call.type == "function_call" and call.name == "get_weather"
    parsed: Any = call.parsed_arguments
    assert isinstance(parsed, dict) and isinstance(parsed["city"], str)
    kept: Any = [item.model_dump(exclude_none=True) for item in first.output]
    for item in kept:
        item.pop("parsed_arguments", None)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "mild"}
    second = client.responses.create(
        model="demo", input=[*asked, *kept, result], tools=[WEATHER], max_output_tokens=30
    )
    assert second.usage is not None and first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


class Person(BaseModel):
    """What the text is parsed to."""

    name: str
    age: int


def test_a_text_is_parsed_by_the_client(client: OpenAI) -> None:
    answer = client.responses.parse(
        input="Extract the person record as JSON: Maria is 34 years old and lives in Lisbon.",
        reasoning={"effort": "none"},
        text_format=Person,
        **GREEDY,
    )
    assert answer.output_parsed == Person(name="Maria", age=34)


def test_a_message_and_its_stream_say_the_same(anthropic_client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "claude-of-some-name", "messages": [{"role": "user", "content": "Hi"}]}
    message = anthropic_client.messages.create(max_tokens=30, **asked)
    assert message.type == "message" and message.usage.output_tokens > 0
    with anthropic_client.messages.stream(max_tokens=30, **asked) as stream:
        final = stream.get_final_message()
    assert [b.model_dump() for b in final.content] == [b.model_dump() for b in message.content]
    assert final.stop_reason == message.stop_reason
    total = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    assert anthropic_client.messages.count_tokens(**asked).input_tokens == total


def test_a_tool_that_must_be_called_is_called(anthropic_client: anthropic.Anthropic) -> None:
    tool: Any = {"name": "read", "input_schema": CITY}
    with anthropic_client.beta.messages.stream(
        model="demo",
        max_tokens=200,
        messages=[{"role": "user", "content": "Read it"}],
        tools=[tool],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    ) as stream:
        message = stream.get_final_message()
    (use,) = [block for block in message.content if block.type == "tool_use"]
    assert use.name == "read" and isinstance(use.input, dict) and set(use.input) == {"city"}
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("ask", "param"),
    [
        (lambda ai: ai.chat.completions.create(**{**GREEDY, "temperature": -1}, messages=USER),
         "temperature"),
        (lambda ai: ai.responses.create(
            model="demo", input=ASK, previous_response_id="resp_1", stream=True),
         "previous_response_id"),
        (lambda ai: ai.responses.create(model="demo", input="word " * 3000, stream=True), "input"),
    ],
)  # fmt: skip
def test_errors_are_the_clients_exceptions_and_name_the_field(
    client: OpenAI, ask: Callable[[OpenAI], Any], param: str
) -> None:
    import openai

    with pytest.raises(openai.BadRequestError) as info:
        ask(client)
    assert info.value.param == param


def test_errors_are_those_that_the_client_of_messages_knows(
    anthropic_client: anthropic.Anthropic,
) -> None:
    import anthropic

    asked: Any = {"model": "demo", "max_tokens": 3, "messages": USER}
    with pytest.raises(anthropic.BadRequestError, match="temperature") as info:
        anthropic_client.messages.create(**asked, extra_body={"temperature": -1})
    assert isinstance(info.value.body, dict) and info.value.body["type"] == "error"
