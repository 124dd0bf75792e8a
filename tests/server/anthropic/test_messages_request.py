"""What requests of the Messages API mean, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types.beta import message_create_params

from mlxgen.server.ask import Ask
from mlxgen.server.errors import RequestError
from mlxgen.server.messages import MessagesRequest, count_tokens, parse_messages
from mlxgen.server.peers import MESSAGES as ELSEWHERE
from mlxgen.server.served_model import ServedModel

from ..openai.kit import demo, plain, refused, without

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
