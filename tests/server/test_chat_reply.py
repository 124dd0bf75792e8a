"""Replies to chats: streamed or whole they say the same, as the official client reads it."""

from __future__ import annotations

import json
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from mlxgen.engine.chunk import Alternative, Chunk, DraftCount, FinishReason, Rejected, Usage
from mlxgen.errors import DeadEndError, GrammarError
from mlxgen.server.chat import parse_chat
from mlxgen.server.openai_reply import OpenAIReply, usage_json
from mlxgen.tokens import Token
from tests.chat import kit
from tests.chat.kit import tool

from ..effort import tries
from .kit import HELLO, chunks_of, demo, news, read_again, usage, whole_of, without

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
TOOLS = {"tools": [tool()]}


def reply(body: dict[str, Any], id: str = "chatcmpl-1") -> OpenAIReply:
    call = parse_chat({"messages": HELLO, **body}, demo())
    return cast(OpenAIReply, call.reply(id=id, created=1_700_000_000))


def answers(
    body: dict[str, Any], rows: list[list[Chunk]]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events of a stream, and the whole answer, of the same chunks."""
    streamed, whole = reply({**body, "stream": True}), reply(body)
    events, folded = streamed.start(), [*whole.start()]
    for index, row in enumerate(rows):
        for chunk in row:
            events += read_again(streamed.take(news(chunk, index)))
            folded += cast(Any, whole.take(news(chunk, index)))
    usages = [usage(7, len(row), 2) for row in rows]
    events += streamed.finish(usages)
    answer = whole_of(whole, [*folded, *whole.finish(usages)])
    for event in events:
        ChatCompletionChunk.model_validate(json.loads(json.dumps(event, allow_nan=False)))
    ChatCompletion.model_validate(json.loads(json.dumps(answer, allow_nan=False)))
    return events, answer


def folded(events: list[dict[str, Any]], choices: int = 1) -> list[dict[str, Any]]:
    """The choices that a stream's events come to."""
    out: list[dict[str, Any]] = [{"message": {}, "finish_reason": None} for _ in range(choices)]
    for event in events:
        for part in event["choices"]:
            choice = out[part["index"]]
            assert choice["finish_reason"] is None, "nothing follows the finish"
            choice["finish_reason"] = part["finish_reason"]
            for name, value in part["delta"].items():
                if name == "tool_calls":
                    calls = choice["message"].setdefault(name, [])
                    for call in value:
                        if "id" in call:
                            assert call["index"] == len(calls)
                            calls.append(without(call, "index"))
                            continue
                        assert call["index"] == len(calls) - 1
                        calls[-1]["function"]["arguments"] += call["function"]["arguments"]
                elif value is not None and name != "role":
                    choice["message"][name] = choice["message"].get(name, "") + value
            for name, entries in (part["logprobs"] or {}).items():
                if entries:
                    choice.setdefault("logprobs", {}).setdefault(name, []).extend(entries)
            for name in ("token_ids", "tokens"):
                choice.setdefault(name, []).extend(part.get(name, []))
    return out


def comparable(choice: dict[str, Any]) -> dict[str, Any]:
    """A whole choice as `folded` gives it."""
    message = {k: v for k, v in choice["message"].items() if v is not None and k != "role"}
    message.setdefault("content", "")
    logprobs = {k: v for k, v in (choice["logprobs"] or {}).items() if v}
    plain = {"message": message, "finish_reason": choice["finish_reason"]}
    ids = {name: choice.get(name, []) for name in ("token_ids", "tokens")}
    return {**plain, **ids, **({"logprobs": logprobs} if logprobs else {})}


def tokens_of(text: str) -> list[Token]:
    return kit.tokens_of(text, demo().vocabulary)


def said(text: str, body: dict[str, Any] | None = None, **how: Any) -> dict[str, Any]:
    """The whole answer's only choice, for a model that says this."""
    chunks = chunks_of(tokens_of(text), demo().vocabulary, **how)
    events, answer = answers(body or {}, [chunks])
    assert folded(events) == [comparable(answer["choices"][0])]
    return cast(dict[str, Any], answer["choices"][0])


def test_long_arguments_are_streamed_as_they_grow() -> None:
    chunks = chunks_of(tokens_of(CALL.replace("Oslo", "Oslo " * 30)), demo().vocabulary)
    events, answer = answers(TOOLS, [chunks])
    deltas = [
        call
        for event in events
        for choice in event["choices"]
        for call in choice["delta"].get("tool_calls", ())
    ]
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert deltas[0]["id"] == call["id"] and all(delta["index"] == 0 for delta in deltas)
    assert all(delta.keys() == {"index", "function"} for delta in deltas[1:])
    assert len(deltas) >= 5


def test_calls_have_names_of_their_own_that_do_not_change() -> None:
    calls = said(f"{CALL}\n{CALL}", TOOLS)["message"]["tool_calls"]
    assert calls[0]["id"] != calls[1]["id"] and calls[0]["id"].startswith("call_")
    assert said(f"{CALL}\n{CALL}", TOOLS)["message"]["tool_calls"] == calls


def test_drafted_tokens_are_counted_as_predicted_ones() -> None:
    drafts = {"text": DraftCount(5, 3), "head": DraftCount(3, 1)}
    used = Usage(drafted_tokens=8, accepted_draft_tokens=4, drafts=drafts)
    details = usage_json([used, used], choices=2, given=0, reasoning=0)["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (8, 8)


def test_impossible_tokens_have_a_number_that_json_can_say() -> None:
    (token,) = tokens_of("a")
    chunk = Chunk("a", token, 0, logprob=float("-inf"), finish_reason="stop")
    _, answer = answers({"logprobs": True}, [[chunk]])
    assert answer["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


def test_marks_say_what_is_not_allowed_and_what_was_rejected() -> None:
    yes, no = tokens_of("ab")
    top = (Alternative(yes, -0.5), Alternative(no, -2.0))
    rejected = (Rejected(no, "draft", "head"), Rejected(yes, "hook"))
    chunk = Chunk("a", yes, 0, -0.5, top, finish_reason="stop", forbidden=(no,), rejected=rejected)
    asked = {"logprobs": True, "top_logprobs": 2}
    _, plain = answers(asked, [[chunk]])
    assert "allowed" not in json.dumps(plain)
    _, answer = answers({**asked, "return_token_ids": True}, [[chunk]])
    (choice,) = answer["choices"]
    (token,) = choice["tokens"]
    allowed, forbidden = token["top_logprobs"]
    assert "allowed" not in allowed
    assert (forbidden["id"], forbidden["allowed"]) == (no, False)
    assert token["rejected"] == [
        {"id": no, "token": "b", "bytes": [98], "reason": "draft", "by": "head"},
        {"id": yes, "token": "a", "bytes": [97], "reason": "hook", "by": None},
    ]
    assert "allowed" not in json.dumps(choice["logprobs"])


def test_a_prefix_is_not_given_back() -> None:
    tokens = tokens_of("<think>I see.</think>Yes, of course.")
    for first in range(1, len(tokens)):
        body = {"prefix_tokens": tokens[:first], "logprobs": True}
        chunks = chunks_of(tokens, demo().vocabulary, first=first, logprob=True)
        events, answer = answers(body, [chunks])
        (choice,) = folded(events)
        assert choice == comparable(answer["choices"][0])
        rest = demo().vocabulary.decode(tokens[first:])
        assert choice["message"]["content"] == rest.rpartition("</think>")[2]
        assert answer["usage"]["completion_tokens"] == len(chunks) - first


def test_a_call_begun_in_the_prefix_is_given_whole() -> None:
    tokens = tokens_of(CALL)
    body = {**TOOLS, "prefix_tokens": tokens[:9]}
    _, answer = answers(body, [chunks_of(tokens, demo().vocabulary, first=9)])
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}


def test_errors_name_the_field_that_a_grammar_came_from() -> None:
    failed = reply({"regex": "a"}).fail(GrammarError("Regex('a'): too large"))
    assert failed["error"]["param"] == "regex"
    failed = reply({}).fail(DeadEndError("no token is allowed"))
    assert failed["error"]["type"] == "server_error"
    failed = reply({}).fail(ValueError("secret"))
    assert "secret" not in json.dumps(failed)


WORDS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        CALL,
        CALL[11:-12],
        "\n",
        " ",
        "é😊",
        "Hello",
        "你好",
        "<",
        "{",
        '"',
        "think>",
    ]
)


@settings(max_examples=tries(150))
@given(
    st.lists(WORDS, max_size=7).map("".join),
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.sampled_from(["stop", "length", "filter"]),
    st.one_of(st.none(), st.integers(0, 60)),
    st.integers(0, 5),
    st.sampled_from([TOOLS, {}, {**TOOLS, "parallel_tool_calls": False}]),
    st.booleans(),
    st.binary(max_size=3),
)
def test_a_stream_put_together_is_the_whole_answer(
    text: str,
    delays: list[int],
    finish: FinishReason,
    cut: int | None,
    first: int,
    tools: dict[str, Any],
    ids: bool,
    tail: bytes,
) -> None:
    vocabulary = demo().vocabulary
    tokens = [*tokens_of(text), *vocabulary.continue_with(tail), 3]
    first = min(first, len(tokens) - 1)
    body = {**tools, "logprobs": True, "top_logprobs": 1, "prefix_tokens": tokens[:first]}
    if ids:
        body["return_token_ids"] = True
    how: dict[str, Any] = {"finish": finish, "cut": cut, "first": first, "logprob": True}
    late = chunks_of(tokens, vocabulary, delays=delays, **how)
    events, answer = answers(body, [late])
    (choice,) = folded(events)
    assert choice == comparable(answer["choices"][0])
    _, at_once = answers(body, [chunks_of(tokens, vocabulary, **how)])
    assert comparable(at_once["choices"][0]) == choice
    # Bytes of broken characters may make others, where a part is put together or the prefix ends.
    if "\N{REPLACEMENT CHARACTER}" in vocabulary.decode(tokens) + vocabulary.decode(tokens[:first]):
        return
    for part in ("content", "reasoning_content"):
        entries = choice.get("logprobs", {}).get(part, [])
        data = b"".join(bytes(entry["bytes"]) for entry in entries)
        assert data.decode("utf-8", "replace") == choice["message"].get(part, "")
