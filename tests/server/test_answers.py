"""What answers look like: every line of ``tests/data/answers.jsonl``, streamed and whole.

A line has a request (``more`` beside the plainest body of its API), what the demo model says to it
(one text for each choice, or its tokens), what was ``used`` if that matters, and the events and the
whole answer that a client gets. Lines that were meant to change are written again by
``python -m tests.server.test_answers``; what that changes is to be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from mlxgen.engine import Chunk, Progress
from mlxgen.engine.chunk import Alternative, DraftCount, Rejected, Usage
from mlxgen.errors import DeadEndError, ModelError, QueueFullError
from mlxgen.server.errors import RequestError
from mlxgen.server.reply import Aside, Delivery, Event, Reply, Sent
from mlxgen.server.token_work import TokenizeRequest, tokenize
from mlxgen.server.wire import to_json, to_text
from tests.chat.kit import tokens_of, tool

from ..effort import tries
from .apis import APIS, CHAT, ENDPOINTS, MESSAGES, RESPONSES, Api, choices_of
from .kit import chunks_of, demo, model_of
from .test_requests import written

DATA = Path(__file__).parents[1] / "data" / "answers.jsonl"
LINES: Sequence[dict[str, Any]] = [
    json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()
]
USED = Usage(
    prompt_tokens=7,
    cached_tokens=2,
    drafted_tokens=5,
    accepted_draft_tokens=3,
    drafts={"text": DraftCount(5, 3)},
)


def read_by_clients(api: str) -> tuple[Any, Any]:
    """The official client's types of events and of a whole answer; importing them takes long."""
    from anthropic import types as messages
    from openai.types import Completion, chat, responses

    return {
        "chat": (chat.ChatCompletionChunk, chat.ChatCompletion),
        "completions": (None, Completion),  # its type knows no choice that goes on
        "messages": (messages.RawMessageStreamEvent, messages.Message),
        "responses": (responses.ResponseStreamEvent, responses.Response),
        "llama": (None, None),
    }[api]


def chunks(line: Mapping[str, Any], delays: Sequence[int]) -> list[list[Chunk]]:
    """What the engine delivers of each choice."""
    known, rows = model_of(line.get("model", "demo")).vocabulary, []
    raw = line["api"] in ("completions", "llama")
    finish = line.get("finish", "stop")
    for text in line["says"]:
        if isinstance(text, list):
            tokens = text
        elif raw:
            tokens = known.continue_with(text.encode())
        else:
            tokens = known.encode(text, special=False) if text else []
        end = sorted(known.eos)[:1] if (finish == "stop" and not raw) or not tokens else []
        row = chunks_of(
            [*tokens, *end],
            known,
            delays=delays,
            finish=finish,
            first=len(line["more"].get("prefix_tokens", ())),
            opens_text=not raw,
            logprob=bool(line["more"].get("logprobs") or line["more"].get("n_probs")),
        )
        rows.append([*row[:-1], replace(row[-1], stop=line.get("stop"))])
    return rows


def reply_to(api: str, model: str = "demo", /, **more: Any) -> Reply:
    endpoint = ENDPOINTS[api]
    ask = endpoint.parse({**endpoint.plainest, **more}, model_of(model))
    return ask.make_reply(ask, "id_1", 1)


def read_again(sent: Iterable[Sent]) -> list[Event]:
    """What a client reads of events."""
    return [json.loads(to_text(event)) for event in sent]


def answered(reply: Reply, rows: Sequence[Sequence[Chunk]], usages: Sequence[Usage]) -> list[Sent]:
    """All the events of an answer."""
    events: list[Sent] = [*reply.start()]
    for index, row in enumerate(rows):
        for chunk in row:
            last = usages[index] if chunk is row[-1] else None
            events += reply.take(Delivery(index, [chunk], last))
    return [*events, *reply.finish(usages)]


def both(
    api: str,
    more: Mapping[str, Any],
    rows: Sequence[Sequence[Chunk]],
    usages: Sequence[Usage] = (),
    model: str = "demo",
) -> tuple[list[Any], Any]:
    """The events of a stream, and what another reply puts together of its own."""
    usages = usages or [replace(USED, completion_tokens=len(row)) for row in rows]
    stream, whole = (reply_to(api, model, **{**more, "stream": each}) for each in (True, False))
    events = read_again(answered(stream, rows, usages))
    for event in answered(whole, rows, usages):
        whole.fold(event)  # type: ignore[arg-type]
    return events, json.loads(json.dumps(whole.whole(), allow_nan=False))


def answers(line: Mapping[str, Any], delays: Sequence[int] = ()) -> tuple[list[Any], Any]:
    """Both, as a line has them."""
    usages = list[Usage]()
    for used in line.get("used", ()):
        drafts = {name: DraftCount(*each) for name, each in used.get("drafts", {}).items()}
        usages.append(Usage(**{**used, "drafts": drafts}))
    rows = chunks(line, delays)
    return both(line["api"], line["more"], rows, usages, line.get("model", "demo"))


@cache
def reading(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


SAID = {"content", "reasoning_content", "reasoning", "text", "delta", "thinking", "arguments"}


def put_together(events: Iterable[Event]) -> list[tuple[Any, list[str]]]:
    """Events without their texts and numbers, and these texts: those that go on with one another
    are one, however they were cut."""
    found: list[tuple[Any, list[str]]] = []
    for event in events:
        texts: list[str] = []
        shape = without_texts(event, texts)
        if found and texts and found[-1][0] == shape:
            before = found.pop()[1]
            texts = [one + more for one, more in zip(before, texts, strict=True)]
        found.append((shape, texts))
    return found


def without_texts(value: Any, texts: list[str]) -> Any:
    if isinstance(value, list):
        return [without_texts(each, texts) for each in value]
    if not isinstance(value, dict):
        return value
    plain = {name: each for name, each in value.items() if name != "sequence_number"}
    for name in sorted(plain.keys() & {*SAID, "partial_json"}):
        if isinstance(plain[name], str):
            texts.append(plain[name])
            plain[name] = ""
    return {name: without_texts(each, texts) for name, each in plain.items()}


def test_every_answer_is_what_its_line_says_and_what_official_clients_read() -> None:
    for line in LINES:
        events, whole = answers(line)
        assert events == line["events"], line["case"]
        assert whole == line["whole"], line["case"]
        event, complete = read_by_clients(line["api"])
        if event is not None:
            for each in events:
                reading(event).validate_python(each)
        if complete is not None:
            complete.model_validate(whole)


def test_only_thoughts_that_were_shown_are_taken_back() -> None:
    row = [Chunk("<think>ab", 7, 0), Chunk("cd", 7, 1), Chunk("e", 7, 1, retract=2)]
    for shown in (True, False):
        given = {"stream": True, "allow_retract": True, "include_reasoning": shown}
        reply = reply_to("chat", **given)
        sent = [event for chunk in row for event in reply.take(Delivery(0, [chunk]))]
        told = [
            (choice.get("retract_reasoning", 0), choice["delta"].get("reasoning"))
            for event in read_again(sent)
            for choice in event["choices"]
        ]
        assert told == ([(0, "ab"), (0, "cd"), (2, "e")] if shown else [])


# ---- the laws of a stream ------------------------------------------------------------------------

CLIENTS = {str(api): api for api in APIS}


@given(st.sampled_from(LINES), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_an_answer_does_not_depend_on_how_its_text_comes(line: Any, delays: list[int]) -> None:
    events, whole = answers(line, delays)
    if line["api"] in ("messages", "responses"):
        assert put_together(events[:-1]) == put_together(line["events"][:-1])
        numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
        assert numbers == list(range(len(numbers)))
    if line["api"] in ("chat", "completions"):
        assert choices_of(events) == choices_of([whole])
    reader = CLIENTS.get(line["api"])
    if reader is not None and "usage" in events[-1] and len(line["says"]) == 1:
        assert reader.streamed(events) == reader.whole(whole)
    if isinstance(whole, dict) and "usage" in whole:  # where thoughts end is seen when they do
        whole["usage"] = line["whole"]["usage"]
    assert whole == line["whole"]


CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", CALL, CALL[11:-12])
WORDS = st.sampled_from([*MARKS, "\n", " ", "é😊", "Hello", "你好", "<", "{", '"', "think>"])
TOOLS = {"tools": [tool()]}


@settings(max_examples=tries(250))
@given(st.data())
def test_a_stream_put_together_is_the_whole_answer(data: st.DataObject) -> None:
    """Whatever a model says, with a part of it from the client, and a stop anywhere."""
    draw, vocabulary = data.draw, demo().vocabulary
    raw = draw(st.booleans())
    if raw:
        tokens = draw(st.lists(st.integers(3, 1023), min_size=1, max_size=12))
    else:
        text = "".join(draw(st.lists(WORDS, max_size=7)))
        tail = vocabulary.continue_with(draw(st.binary(max_size=3)))
        tokens = [*tokens_of(text, vocabulary), *tail, 3]
    first = min(draw(st.integers(0, 5)), len(tokens) - 1)
    more = {"prefix_tokens": tokens[:first], "return_token_ids": draw(st.booleans())}
    if raw:
        api, more = "completions", {**more, "logprobs": 1, "max_tokens": 99}
    else:
        alone = {**TOOLS, "parallel_tool_calls": False}
        api, more = "chat", {**more, "logprobs": True, "top_logprobs": 1}
        more |= draw(st.sampled_from([TOOLS, {}, alone]))
    how: dict[str, Any] = {
        "finish": draw(
            st.sampled_from(["stop", "length"] if raw else ["stop", "length", "filter"])
        ),
        "cut": draw(st.none() | st.integers(0, 60)),
        "first": first,
        "logprob": True,
        "opens_text": not raw,
    }
    delays = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    late = chunks_of(tokens, vocabulary, delays=delays, **how)
    events, whole = both(api, more, [late])
    for event in events:
        read_by_clients("chat")[0].model_validate(event) if not raw else None
    (choice,) = choices_of(events).values()
    assert choice == choices_of([whole])[0]
    _, at_once = both(api, more, [chunks_of(tokens, vocabulary, **how)])
    assert choices_of([at_once])[0] == choice
    assert whole["usage"]["completion_tokens"] == len(late) - first
    if raw:
        assert choice["content"] == "".join(chunk.text for chunk in late)
        pieces, places = choice["logprobs of tokens"], choice["logprobs of text_offset"]
        assert "".join(pieces) == choice["content"]
        for place, piece in zip(places, pieces, strict=True):
            assert choice["content"][place : place + len(piece)] == piece
        return
    # Bytes of broken characters may make others, where a part is put together or the prefix ends.
    if "\N{REPLACEMENT CHARACTER}" in vocabulary.decode(tokens) + vocabulary.decode(tokens[:first]):
        return
    for part in ("content", "reasoning_content"):
        joined = b"".join(bytes(entry["bytes"]) for entry in choice[f"logprobs of {part}"])
        assert joined.decode("utf-8", "replace") == choice[part]


# ---- what is told about tokens -------------------------------------------------------------------


def test_long_arguments_are_streamed_as_they_grow() -> None:
    tokens = tokens_of(CALL.replace("Oslo", "Oslo " * 30), demo().vocabulary)
    events, whole = both("chat", TOOLS, [chunks_of(tokens, demo().vocabulary)])
    assert choices_of(events) == choices_of([whole])
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert sum("tool_calls" in delta for delta in deltas) >= 5


def test_log_probabilities_say_what_was_impossible_not_allowed_and_rejected() -> None:
    yes, no = tokens_of("ab", demo().vocabulary)
    chunk = Chunk(
        "a",
        yes,
        0,
        float("-inf"),
        (Alternative(yes, -0.5), Alternative(no, -2.0)),
        finish_reason="stop",
        forbidden=(no,),
        rejected=(Rejected(no, "draft", "head"), Rejected(yes, "hook")),
    )
    asked = {"logprobs": True, "top_logprobs": 2}
    assert "allowed" not in json.dumps(both("chat", asked, [[chunk]]))
    (choice,) = both("chat", {**asked, "return_token_ids": True}, [[chunk]])[1]["choices"]
    assert choice["logprobs"]["content"][0]["logprob"] == -9999.0
    assert "allowed" not in json.dumps(choice["logprobs"])
    (token,) = choice["tokens"]
    assert [other.get("allowed") for other in token["top_logprobs"]] == [None, False]
    assert token["rejected"] == [
        {"id": no, "token": "b", "bytes": [98], "reason": "draft", "by": "head"},
        {"id": yes, "token": "a", "bytes": [97], "reason": "hook", "by": None},
    ]


def test_the_token_itself_is_always_among_its_alternatives() -> None:
    chunk = Chunk("b", 98, 0, logprob=-3.0, top=(Alternative(97, -0.1),), finish_reason="length")
    _, whole = both("completions", {"logprobs": 1}, [[chunk]], model="plain")
    assert whole["choices"][0]["logprobs"]["top_logprobs"] == [{"b": -3.0, "a": -0.1}]


# ---- failures and signs of life ------------------------------------------------------------------

FAILURES: list[tuple[Exception, str]] = [
    (RequestError.at("input", "too long", "context_length_exceeded"), "context_length_exceeded"),
    (DeadEndError("nothing"), "server_error"),
    (QueueFullError("full"), "rate_limit_exceeded"),
    (RequestError("late", status=504, code="timeout"), "server_error"),
    (RequestError.at("tools", "no", "invalid_grammar"), "invalid_prompt"),
    (ModelError("broken"), "server_error"),
    (ValueError("secret"), "server_error"),
]
"""Errors, and the codes that agents know of a stream of the Responses API that fails."""


def test_a_long_answer_is_written_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of the encoder lets nobody else run until it is done."""
    written, encode = list[int](), json.JSONEncoder.encode

    def counted(encoder: json.JSONEncoder, value: Any) -> str:
        written.append(len(encode(encoder, value)))
        return encode(encoder, value)

    monkeypatch.setattr(json.JSONEncoder, "encode", counted)
    text = "fox " * 50_000
    asked = TokenizeRequest(content=text, with_pieces=True, return_token_strs=True)
    told = json.loads(to_json(tokenize(asked, demo())))
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"]) > 50_000
    assert "".join(each["piece"] for each in told["tokens"]).strip() == text.strip()
    entries = [{"token": "a", "top_logprobs": [{"token": "b"}]}] * 20_000
    whole = {"choices": [{"logprobs": {"content": entries, "refusal": None}, "tokens": []}]}
    assert json.loads(to_json(whole)) == whole
    assert len(written) > 100 and max(written) < 100_000


def test_a_begin_token_is_left_out_under_either_name() -> None:
    def tokens(**fields: Any) -> list[int]:
        asked = TokenizeRequest.model_validate({"content": "a", **fields})
        return list(tokenize(asked, model_of("pieces"))["tokens"])

    assert tokens(add_special=False) == tokens(add_special_tokens=False) == tokens()[1:]


@pytest.mark.parametrize(("error", "code"), FAILURES)
def test_a_stream_that_fails_ends_with_an_error_of_its_api(error: Exception, code: str) -> None:
    begun = chunks_of([104, 105], demo().vocabulary)[0]
    last: dict[str, Any] = {}
    for api in ENDPOINTS.keys() - {"infill"}:
        reply = reply_to(api, stream=True)
        events = [*reply.start(), *reply.take(Delivery(0, [begun], None)), reply.fail(error)]
        last[api] = read_again(events)[-1]
        assert "secret" not in json.dumps(last)
    assert last["chat"] == last["completions"] == last["llama"]
    assert last["chat"]["error"]["message"]
    assert last["messages"]["type"] == "error" and last["messages"]["error"]["message"]
    response = last["responses"]["response"]
    assert (last["responses"]["type"], response["status"]) == ("response.failed", "failed")
    assert response["error"]["code"] == code


@pytest.mark.parametrize("api", [CHAT, MESSAGES, RESPONSES], ids=str)
def test_a_sign_of_life_is_skipped_or_numbered(api: Api) -> None:
    reply = reply_to(str(api), stream=True)
    [early] = reply.alive()
    begun = [*reply.start()]
    [late] = reply.alive()
    if api is RESPONSES:
        events = read_again([*begun, early, late])
        assert [event["sequence_number"] for event in events] == [0, 1, 2, 3]
        assert {event["type"] for event in events[1:]} == {"response.in_progress"}
    else:
        assert isinstance(early, Aside) and isinstance(late, Aside)
        assert early.text.startswith(": ")  # readers of messages expect no event before the start
        assert late.text.startswith("event: ping" if api is MESSAGES else ": keepalive 0/")


def test_what_the_prefix_cache_had_is_known_when_a_message_starts() -> None:
    reply, known = reply_to("messages", stream=True), demo().vocabulary
    row = chunks_of(known.encode("Hello there", special=False), known)
    forced = Delivery(0, row[:1], progress=Progress(Usage(prompt_tokens=20), 0))
    assert not reply.take(forced)
    run = Usage(prompt_tokens=20, cached_tokens=15)
    said = reply.take(Delivery(0, (), progress=Progress(run, 18)))
    [start] = reply.start()
    assert isinstance(start, dict)
    usage = start["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (5, 15)
    said = [*said, *reply.take(Delivery(0, row[1:], replace(run, completion_tokens=2)))]
    texts = [event["delta"].get("text", "") for event in read_again(said) if "delta" in event]
    assert "".join(texts) == "Hello there"


def write() -> None:
    lines = []
    for line in LINES:
        events, whole = answers(line)
        lines.append(written({**line, "events": events, "whole": whole}) + "\n")
    DATA.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    write()
