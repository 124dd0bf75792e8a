"""What clients send that is not of this server's own fields, and what they look for in errors."""

from __future__ import annotations

import re
from typing import Any

import pytest
from anthropic.types.beta import message_create_params as message_params
from hypothesis import given
from hypothesis import strategies as st
from openai.types import completion_create_params as completion_params
from openai.types.chat import (
    ChatCompletionFunctionToolParam,
    ChatCompletionStreamOptionsParam,
)
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as response_params
from openai.types.shared_params import FunctionDefinition as FunctionParam
from openai.types.shared_params.response_format_json_schema import JSONSchema
from pydantic import BaseModel

from mlxgen.engine import Progress
from mlxgen.server import chat as chat_bodies
from mlxgen.server import generation
from mlxgen.server.ask import Ask
from mlxgen.server.bodies import cache_marks, header_of
from mlxgen.server.chat import ChatRequest, parse_chat
from mlxgen.server.completions import CompletionRequest, parse_completion
from mlxgen.server.engine.mailbox import Delivery
from mlxgen.server.llama import parse_infill
from mlxgen.server.messages import MessagesRequest
from mlxgen.server.peers import MESSAGES, OPENAI, RESPONSES, Neutral, Rule, SameAs
from mlxgen.server.responses import ResponsesRequest

from .kit import HELLO, chunks_of, coder, demo, refused, usage, whole_of

PROGRESS = Progress(usage(), 3)
GAP: dict[str, Any] = {"input_prefix": "def f(", "input_suffix": "):\n"}
ELSEWHERE = {
    ChatRequest: OPENAI,
    CompletionRequest: OPENAI,
    ResponsesRequest: RESPONSES,
    MessagesRequest: MESSAGES,
}
CHAT: dict[str, Any] = {"messages": HELLO}
TEXT: dict[str, Any] = {"prompt": "Hello"}
FIELDS = {**ChatRequest.model_fields, **CompletionRequest.model_fields}


def leaves(rules: Any, at: str = "") -> list[tuple[str, Rule]]:
    """All rules with the path of their names."""
    out: list[tuple[str, Rule]] = []
    for name, rule in rules.items():
        if isinstance(rule, dict):
            out += leaves(rule, f"{at}{name}.")
        else:
            out.append((f"{at}{name}", rule))
    return out


LEAVES = leaves(OPENAI)


def body_of(path: str, value: Any) -> dict[str, Any]:
    name, _, key = (path, "", "") if path in OPENAI else path.partition(".")
    return {name: {key: value} if key else value}


def base_of(path: str) -> tuple[Any, dict[str, Any]]:
    """An endpoint that does not have this name for a field of its own."""
    is_chats = path.partition(".")[0] in ChatRequest.model_fields
    return (parse_completion, TEXT) if is_chats else (parse_chat, CHAT)


@pytest.mark.parametrize(("path", "rule"), LEAVES, ids=[path for path, _ in LEAVES])
def test_every_name_of_the_table_does_what_it_says(path: str, rule: Rule) -> None:
    parse, base = base_of(path)
    plain: Ask = parse(base, demo())
    assert parse({**base, **body_of(path, None)}, demo()).jobs == plain.jobs  # null means default
    if isinstance(rule, Neutral) and rule.values is None:
        anything: tuple[Any, ...] = (True, 5, "x", {"a": []})
        for value in anything:
            assert parse({**base, **body_of(path, value)}, demo()).jobs == plain.jobs
        return
    if isinstance(rule, Neutral):
        for value in rule.values or ():
            assert parse({**base, **body_of(path, value)}, demo()).jobs == plain.jobs
    if isinstance(rule, SameAs):
        assert rule.field.partition(".")[0] in FIELDS
        return
    error = refused(parse, {**base, **body_of(path, "nothing of it")}, demo())
    assert error.param == path and error.code == "unsupported_parameter"
    assert isinstance(rule, (Neutral, str))
    assert (rule if isinstance(rule, str) else rule.otherwise) in error.message


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        (chat_params.CompletionCreateParamsStreaming, ChatRequest),
        (response_params.ResponseCreateParamsStreaming, ResponsesRequest),
        (message_params.MessageCreateParamsStreaming, MessagesRequest),
        (completion_params.CompletionCreateParamsStreaming, CompletionRequest),
        (ChatCompletionStreamOptionsParam, generation.StreamOptions),
        (ChatCompletionFunctionToolParam, chat_bodies.Tool),
        (FunctionParam, chat_bodies.FunctionDefinition),
        (JSONSchema, generation.NamedSchema),
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_field_of_the_client_is_known(sent: Any, known: type[BaseModel]) -> None:
    names = {field.alias or name for name, field in known.model_fields.items()}
    names |= ELSEWHERE.get(known, {}).keys()
    assert set(sent.__annotations__) <= names


@pytest.mark.parametrize("fields", [{}, {"prefix_tokens": [5] * 2000}])
def test_clients_recognise_the_words_for_a_prompt_that_is_too_long(fields: Any) -> None:
    # litellm, langchain, Roo, and those that read the numbers out of vLLM's or OpenAI's message
    prompt = "a " * (100 if fields else 3000)
    error = refused(parse_completion, {"prompt": prompt, "max_tokens": 2048, **fields}, demo())
    said = error.message.lower()
    assert error.code == "context_length_exceeded"
    assert "prompt is too long" in said
    assert "this model's maximum context length is 2048 tokens. however, your" in said
    assert re.search(r"resulted in (\d+) tokens", said)


def test_what_an_editor_sends_is_taken() -> None:
    editor = {
        **GAP,
        "id_slot": 0,
        "input_extra": [],
        "prompt": "",
        "n_predict": 128,
        "stop": [],
        "n_indent": 4,
        "top_k": 40,
        "top_p": 0.9,
        "stream": False,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "response_fields": ["content", "timings/prompt_n", "truncated", "nothing", "content/x"],
    }
    call = parse_infill(editor, coder())
    reply = call.reply(id="x", created=0)
    vocabulary = coder().vocabulary
    chunks = chunks_of(vocabulary.continue_with(b"pass"), vocabulary, opens_text=False)
    events = [
        event for chunk in chunks for event in reply.take(Delivery(0, [chunk], None, PROGRESS))
    ]
    assert whole_of(reply, events) == {
        "content": "pass",
        "timings/prompt_n": 3,
        "truncated": False,
    }
    warming = parse_infill({**editor, "n_predict": 0, "response_fields": [""]}, coder())
    reply = warming.reply(id="x", created=0)
    events = [
        event for chunk in chunks for event in reply.take(Delivery(0, [chunk], None, PROGRESS))
    ]
    assert whole_of(reply, events) == {}


# ---- the header that names what had no effect


@given(st.lists(st.text(max_size=300), max_size=30))
def test_the_header_is_printable_ascii_and_bounded(names: list[str]) -> None:
    header = header_of(names)
    assert len(header) < 1100 and header.isascii() and (header.isprintable() or not header)
    assert header == header.strip() and header_of(["", *names])


def test_names_are_listed_once_and_what_is_too_much_is_left_out() -> None:
    assert header_of(["store", "user", "store"]) == "store, user"
    many = header_of(f"tools[{i}]" for i in range(2000))
    assert many.startswith("tools[0], tools[1], ") and many.endswith("], ...")


def test_marks_are_found_in_the_conversation_and_in_tools_and_not_in_schemas() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    schema = {"properties": {"cache_control": {"type": "string"}}}
    parts = [{"content": [{"type": "tool_result", "content": [{"text": "x", **mark}]}]}]
    for body in ({"messages": parts}, {"system": [mark]}, {"tools": [{"function": mark}]}):
        assert cache_marks(body) == ["cache_control"]
    assert cache_marks({"tools": [{"input_schema": schema}], "messages": "x", "input": [5]}) == []
