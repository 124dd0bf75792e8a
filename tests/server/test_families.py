"""An answer in channels, through each of the three APIs."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from mlxgen.server.chat import parse_chat
from mlxgen.server.messages import parse_messages
from mlxgen.server.responses import parse_responses
from mlxgen.server.served_model import ServedModel

from ..chat.kit import tokens_of
from ..chat.makers import MAKERS, vocabulary_of
from .kit import chunks_of, news, served, usage, whole_of

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TEXT = MAKERS["gpt-oss"].written(("get", {"city": "Oslo"}), thought="Hm.", text="I look.")
HELLO = [{"role": "user", "content": "Hello"}]


@cache
def model() -> ServedModel:
    return served(vocabulary_of("gpt-oss").tokenizer)


def answer(parse: Any, body: Any) -> Any:
    """The whole answer of a model that says ``TEXT``."""
    reply = parse(body, model()).reply(id="x_1", created=1)
    vocabulary = model().vocabulary
    tokens = [*tokens_of(TEXT, vocabulary), *sorted(vocabulary.eos)[:1]]
    events = [*reply.start()]
    for chunk in chunks_of(tokens, vocabulary):
        events += reply.take(news(chunk, 0, usage() if chunk.finish_reason else None))
    return whole_of(reply, [*events, *reply.finish([usage()])])


def test_chat_completions_have_its_parts() -> None:
    tool = {"type": "function", "function": {"name": "get", "parameters": SCHEMA}}
    (choice,) = answer(parse_chat, {"messages": HELLO, "tools": [tool]})["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["reasoning_content"] == "Hm." and message["content"] == "I look."
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "get"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}


def test_messages_have_its_parts() -> None:
    tool = {"name": "get", "input_schema": SCHEMA}
    message = answer(parse_messages, {"messages": HELLO, "tools": [tool], "max_tokens": 500})
    assert message["stop_reason"] == "tool_use"
    thinking, text, use = message["content"]
    assert (thinking["thinking"], text["text"]) == ("Hm.", "I look.")
    assert (use["name"], use["input"]) == ("get", {"city": "Oslo"})


def test_responses_have_its_parts() -> None:
    tool = {"type": "function", "name": "get", "parameters": SCHEMA}
    items = answer(parse_responses, {"input": "Hello", "tools": [tool]})["output"]
    kinds = {item["type"]: item for item in items}
    assert list(kinds) == ["reasoning", "message", "function_call"]
    assert kinds["message"]["content"][0]["text"] == "I look."
    assert json.loads(kinds["function_call"]["arguments"]) == {"city": "Oslo"}


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (parse_chat, {"messages": HELLO, "response_format": {"type": "json_object"}}),
        (
            parse_responses,
            {"input": "Hello", "text": {"format": {"type": "json_object"}}},
        ),
    ],
)
def test_a_form_can_be_asked_for(parse: Any, body: Any) -> None:
    assert parse(body, model()).spec
