"""The Responses API: what requests mean, which are refused, and the events of replies."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from mlxgen.engine import Options
from mlxgen.errors import DeadEndError, ModelError, QueueFullError
from mlxgen.server.ask import Ask
from mlxgen.server.errors import RequestError
from mlxgen.server.reply import Reply
from mlxgen.server.responses import parse_responses

from .apis import RESPONSES
from .kit import chunks_of, demo, news, read_again

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


def reply_to(stream: bool, **fields: Any) -> Reply:
    return RESPONSES.call(stream=stream, **fields).reply(id="resp_1", created=1)


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
    events: list[Any] = [
        *reply.start(),
        *reply.take(news(chunks_of([104, 105], demo().vocabulary)[0])),
    ]
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
