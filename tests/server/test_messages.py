"""The Messages API: what requests mean, which are refused, and the events of replies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from anthropic.types.beta import message_create_params
from hypothesis import given
from hypothesis import strategies as st

from mlxgen.server.ask import Ask
from mlxgen.server.errors import RequestError
from mlxgen.server.messages import MessagesRequest, count_tokens, parse_messages
from mlxgen.server.peers import MESSAGES as ELSEWHERE
from mlxgen.server.served_model import ServedModel

from .apis import ANSWERS, MESSAGES, READ_CALL, answers
from .kit import chunks_of, demo, news, plain, refused, usage, whole_of, without

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


def test_blocks_and_their_texts_make_the_same_prompt() -> None:
    block = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
    assert prompt(messages=[{"role": "user", "content": [block]}]) == prompt()
    told = prompt(system="Be kind")
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; x=a81f"}
    kind = {"type": "text", "text": "Be kind"}
    assert prompt(system=[billing, kind]) == prompt(system=[kind]) == told
    assert told.startswith("<|im_start|>system\nBe kind") and prompt(system=[billing]) == prompt()


def test_calls_results_and_thoughts_come_back_in_their_places() -> None:
    thinking = {"type": "thinking", "thinking": "A file.", "signature": "abc"}
    use = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "/a"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "no such file"}
    text = prompt(
        tools=[READ],
        messages=[
            USER,
            {"role": "assistant", "content": [thinking, {"type": "text", "text": "I see."}, use]},
            {"role": "user", "content": [result | {"is_error": True}, USER["content"]][:1]},
            {"role": "system", "content": "Now answer."},
        ],
    )
    order = ["Hello", "I see.", '"name": "Read"', '"/a"', "Error: no such file", "Now answer."]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    shown = [{"type": "text", "text": "no such"}, {"type": "text", "text": "file"}]
    again = [USER, {"role": "assistant", "content": [use]}]
    again += [{"role": "user", "content": [result | {"content": shown}]}]
    assert "no such\nfile" in prompt(tools=[READ], messages=again)


def test_an_answer_that_was_begun_is_continued() -> None:
    begun = [USER, {"role": "assistant", "content": "Well,"}]
    assert prompt(messages=begun).endswith("Well,")
    error = refusal(messages=[USER, {"role": "assistant", "content": ""}])
    assert error.param == "messages[1].content"


@pytest.mark.parametrize("thinking", ["disabled", "adaptive", "enabled"])
def test_thinking_is_switched_where_the_model_can(thinking: str) -> None:
    asked = {"type": thinking, "budget_tokens": 1024}
    assert (prompt(thinking=asked) != prompt()) is (thinking == "disabled")
    assert prompt(plain(), thinking=asked) == prompt(plain())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, None),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str | None) -> None:
    error = refusal(**fields)
    assert error.param is not None and (param is None or error.param == param)


def test_every_field_of_the_client_is_known() -> None:
    sent = message_create_params.MessageCreateParamsStreaming.__annotations__
    assert sent.keys() <= MessagesRequest.model_fields.keys() | ELSEWHERE.keys()
    changes = call(speed="fast", mcp_servers=[], container=None)
    assert changes.jobs == call().jobs and changes.ignored == ["speed", "mcp_servers"]
    assert refusal(thread={"type": "create"}).param == "thread"


def test_the_tokens_of_a_prompt_are_counted_as_they_would_be_run() -> None:
    body = BODY | {"tools": [READ], "system": "Be kind"}
    run = parse_messages(body, demo()).jobs[0].prompt.tokens
    assert count_tokens(without(body, "max_tokens"), demo()) == {"input_tokens": len(run)}


def test_the_budget_of_the_thinking_is_its_own_or_what_the_effort_means() -> None:
    def budget(**fields: Any) -> int | None:
        return call(**fields).jobs[0].options.thinking_budget

    assert budget() is None
    assert budget(thinking={"type": "enabled", "budget_tokens": 2000}) == 2000
    assert budget(thinking={"type": "adaptive"}, output_config={"effort": "low"}) == 1024
    assert budget(thinking={"type": "disabled", "budget_tokens": 2000}) is None
    assert refusal(thinking={"type": "enabled", "budget_tokens": -1}).param == (
        "thinking.budget_tokens"
    )


def test_stops_may_be_asked_for_in_the_thinking_as_well() -> None:
    assert not call(stop_sequences=["x"]).jobs[0].options.stop_in_reasoning
    assert call(stop_sequences=["x"], stop_in_reasoning=True).jobs[0].options.stop_in_reasoning


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
