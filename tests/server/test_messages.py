"""The Messages API: what requests mean, which are refused, and the events of replies."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlxgen.server.ask import Ask
from mlxgen.server.errors import RequestError
from mlxgen.server.messages import count_tokens, parse_messages
from mlxgen.server.served_model import ServedModel

from .apis import ANSWERS, MESSAGES, answers
from .kit import demo, refused, without

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


def test_a_failure_is_an_error_of_the_api() -> None:
    event = MESSAGES.call(stream=True).reply(id="msg_1", created=0).fail(RuntimeError("x"))
    assert event["type"] == "error" and event["error"]["type"] == "api_error"
