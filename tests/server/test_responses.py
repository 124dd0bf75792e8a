"""The Responses API: what requests mean, which are refused, and the events of replies."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response as Whole
from openai.types.responses import (
    ResponseStreamEvent,
)
from pydantic import TypeAdapter

from mlxgen.engine import Options
from mlxgen.errors import DeadEndError, ModelError, QueueFullError
from mlxgen.server.ask import Ask
from mlxgen.server.errors import RequestError
from mlxgen.server.reply import Event, Reply
from mlxgen.server.responses import parse_responses

from .apis import ANSWERS, RESPONSES, answers, spoken
from .kit import demo, news, read_again

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
