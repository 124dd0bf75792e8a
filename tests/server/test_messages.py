"""The Messages API: what requests mean, which are refused, and the events of replies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen.server.ask import Ask
from mlxgen.server.errors import RequestError
from mlxgen.server.messages import count_tokens, parse_messages
from mlxgen.server.served_model import ServedModel

from .apis import ANSWERS, MESSAGES, READ_CALL, answers
from .kit import chunks_of, demo, news, refused, usage, whole_of, without

USER = {"role": "user", "content": "Hello"}
BODY: dict[str, Any] = {"model": "claude-any", "max_tokens": 20, "messages": [USER]}
READ = {
    "name": "Read",
    "description": "Reads a file",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"path": {"type": "string", "format": "uri", "pattern": "^/"}},
        "propertyNames": {"minLength": 1},
        "required": ["path"],
    },
    "cache_control": {"type": "ephemeral"},
}


def call(model: ServedModel | None = None, **fields: Any) -> Ask:
    return parse_messages(BODY | fields, model or demo())


def prompt(model: ServedModel | None = None, **fields: Any) -> str:
    return demo().vocabulary.decode(call(model, **fields).jobs[0].prompt.tokens)


def refusal(**fields: Any) -> RequestError:
    error = refused(parse_messages, BODY | fields, demo())
    assert isinstance(error, RequestError)
    return error


def test_the_tokens_of_a_prompt_are_counted_as_they_would_be_run() -> None:
    body = BODY | {"tools": [READ], "system": "Be kind"}
    run = parse_messages(body, demo()).jobs[0].prompt.tokens
    assert count_tokens(without(body, "max_tokens"), demo()) == {"input_tokens": len(run)}


def whole(text: str, finish: Any = "stop", **fields: Any) -> Any:
    return answers(MESSAGES, text, finish=finish, **fields)[1]


@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 9), max_size=4))
def test_the_blocks_of_a_stream_are_in_order(name: str, delays: list[int]) -> None:
    events, message = answers(MESSAGES, ANSWERS[name], delays)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    index, is_open = -1, False
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == index + 1
            index, is_open = index + 1, True
        else:
            assert is_open and event["index"] == index
            is_open = event["type"] != "content_block_stop"
    assert not is_open and len(message["content"]) == index + 1


def test_thoughts_text_and_calls_are_blocks() -> None:
    message = whole(ANSWERS["all of it"])
    thought, text, first, second = message["content"]
    assert thought["type"] == "thinking" and thought["thinking"] == "A file."
    assert thought["signature"] and text == {"type": "text", "text": "I read."}
    assert first["input"] == {"path": "/a"} and first["id"] != second["id"]
    assert message["role"] == "assistant"
    events, _ = answers(MESSAGES, ANSWERS["a call"])
    begun = next(e["content_block"] for e in events if e["type"] == "content_block_start")
    assert begun["input"] == {} and begun["name"] == "Read"


def test_thoughts_that_were_switched_off_are_not_shown() -> None:
    message = whole("Hi. <think>\nHm.\n</think>\n\nHello!", thinking={"type": "disabled"})
    assert [block["type"] for block in message["content"]] == ["text"]


def test_a_stop_sequence_is_the_reason_of_the_end() -> None:
    reply = MESSAGES.call(stop_sequences=["END"]).reply(id="msg_1", created=0)
    *chunks, last = chunks_of([104, 105], demo().vocabulary, finish="stop")
    events = [*reply.start()]
    for chunk in chunks:
        events += reply.take(news(chunk))
    events += reply.take(news(replace(last, stop="END"), 0, usage(7, 2, 4)))
    message = whole_of(reply, events)
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
    assert without(message["usage"], "timings") == {
        "input_tokens": 3,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens": 2,
    }


@pytest.mark.parametrize(
    ("text", "finish", "reason"),
    [
        ("Hi", "length", "max_tokens"),
        ("Hi", "stop", "end_turn"),
        ("Hi", "filter", "end_turn"),
        (READ_CALL, "stop", "tool_use"),
    ],
)
def test_the_reason_of_the_end(text: str, finish: Any, reason: str) -> None:
    message = whole(text, finish)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, None)


def test_a_call_that_was_cut_off_has_no_arguments() -> None:
    message = whole(READ_CALL[:50], "length")
    assert message["content"][0]["input"] == {} and message["stop_reason"] == "max_tokens"


def test_a_failure_is_an_error_of_the_api() -> None:
    event = MESSAGES.call(stream=True).reply(id="msg_1", created=0).fail(RuntimeError("x"))
    assert event["type"] == "error" and event["error"]["type"] == "api_error"
