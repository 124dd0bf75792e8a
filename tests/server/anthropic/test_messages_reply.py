"""The events of a message, and the whole of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen.server.anthropic.messages import parse_messages
from mlxgen.server.call import Event, Reply

from ..openai.kit import chunks_of, demo, usage

USER = {"role": "user", "content": "Hello"}
READ = {"name": "Read", "input_schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "Read", "arguments": {"path": "/a"}}\n</tool_call>'
ANSWERS = {
    "text": "Hello there!",
    "nothing": "",
    "thoughts": "<think>\nA greeting.\n</think>\n\nHello!",
    "a call": CALL,
    "all of it": f"<think>\nA file.\n</think>\n\nI read.\n{CALL}\n{CALL}",
}


def reply_to(stream: bool, **fields: Any) -> Reply:
    body = {"messages": [USER], "tools": [READ], "max_tokens": 500, "stream": stream, **fields}
    return parse_messages(body, demo()).reply(id="msg_1", created=0)


def streamed(text: str, delays: list[int], finish: Any = "stop", **fields: Any) -> list[Event]:
    reply = reply_to(True, **fields)
    events: list[Any] = []
    chunks = pieces(text, delays, finish)
    for chunk in chunks:
        events += reply.push(0, chunk, usage=usage() if chunk is chunks[-1] else None)
    return [*reply.start(), *events, *reply.finish([usage()])]


def whole(text: str, delays: list[int], finish: Any = "stop", **fields: Any) -> Any:
    reply = reply_to(False, **fields)
    chunks = pieces(text, delays, finish)
    for chunk in chunks:
        assert not reply.push(0, chunk, usage=usage() if chunk is chunks[-1] else None)
    return reply.complete([usage()])


def pieces(text: str, delays: list[int], finish: Any) -> list[Any]:
    vocabulary = demo().vocabulary
    tokens = vocabulary.encode(text, special=False) if text else []
    end = sorted(vocabulary.eos)[:1] if finish == "stop" else []
    return chunks_of([*tokens, *end], vocabulary, delays=delays, finish=finish)


@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 9), max_size=4))
def test_the_blocks_of_a_stream_are_in_order_and_say_what_the_whole_says(
    name: str, delays: list[int]
) -> None:
    events = streamed(ANSWERS[name], delays)
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
    assert not is_open
    message = whole(ANSWERS[name], [])
    for i, block in enumerate(message["content"]):
        deltas = [e["delta"] for e in events if e.get("index") == i and "delta" in e]
        said = "".join(d.get("text") or d.get("thinking") or "" for d in deltas)
        assert said == (block.get("text") or block.get("thinking") or "")
    assert len(message["content"]) == index + 1
    assert message["stop_reason"] == events[-2]["delta"]["stop_reason"]
    assert message["usage"] == events[-2]["usage"]


def test_thoughts_text_and_calls_are_blocks() -> None:
    message = whole(ANSWERS["all of it"], [])
    thought, text, first, second = message["content"]
    assert thought["type"] == "thinking" and thought["thinking"] == "A file."
    assert thought["signature"] and text == {"type": "text", "text": "I read."}
    assert first["input"] == {"path": "/a"} and first["id"] != second["id"]
    assert message["stop_reason"] == "tool_use" and message["role"] == "assistant"
    events = streamed(ANSWERS["a call"], [])
    begun = next(e["content_block"] for e in events if e["type"] == "content_block_start")
    assert begun["input"] == {} and begun["name"] == "Read"


def test_thoughts_that_were_switched_off_are_not_shown() -> None:
    message = whole("Hi. <think>\nHm.\n</think>\n\nHello!", [], thinking={"type": "disabled"})
    assert [block["type"] for block in message["content"]] == ["text"]


@pytest.mark.parametrize(
    ("finish", "stop", "reason"),
    [
        ("length", None, "max_tokens"),
        ("stop", None, "end_turn"),
        ("stop", "END", "stop_sequence"),
        ("filter", None, "end_turn"),
    ],
)
def test_the_reason_of_the_end(finish: Any, stop: str | None, reason: str) -> None:
    from dataclasses import replace

    reply = reply_to(False, stop_sequences=["END"])
    *chunks, last = chunks_of([104, 105], demo().vocabulary, finish=finish)
    for chunk in chunks:
        reply.push(0, chunk)
    reply.push(0, replace(last, stop=stop), usage=usage(7, 2, 4))
    message = reply.complete([])
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, stop)
    assert message["usage"] == {
        "input_tokens": 3,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens": 2,
    }


def test_a_call_that_was_cut_off_has_no_arguments() -> None:
    message = whole(CALL[:50], [], "length")
    assert message["content"][0]["input"] == {} and message["stop_reason"] == "max_tokens"


def test_a_failure_is_an_error_of_the_api() -> None:
    event = reply_to(True).fail(RuntimeError("x"))
    assert event["type"] == "error" and event["error"]["type"] == "api_error"
