"""The official client against a server: messages, streams, counts and errors."""

from __future__ import annotations

import anthropic
import pytest

from ..running import WAIT, Running

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
def client(server: Running) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0, timeout=WAIT)


def test_a_message_and_its_stream_say_the_same(client: anthropic.Anthropic) -> None:
    asked = {
        "model": MODEL,
        "max_tokens": 30,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    message = client.messages.create(**asked)  # type: ignore[call-overload]
    assert message.type == "message" and message.usage.output_tokens > 0
    with client.messages.stream(**asked) as stream:  # type: ignore[arg-type]
        final = stream.get_final_message()
    assert [b.model_dump() for b in final.content] == [b.model_dump() for b in message.content]
    assert final.stop_reason == message.stop_reason
    total = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    counted = client.messages.count_tokens(model=MODEL, messages=asked["messages"])  # type: ignore[arg-type]
    assert counted.input_tokens == total


def test_a_tool_that_must_be_called_is_called(client: anthropic.Anthropic) -> None:
    with client.beta.messages.stream(
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


def test_errors_are_those_that_the_client_knows(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(
            model=MODEL,
            max_tokens=3,
            messages=[{"role": "user", "content": "Hello"}],
            extra_body={"temperature": -1},
        )
