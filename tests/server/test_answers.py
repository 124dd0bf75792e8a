"""What answers look like: every line of ``tests/data/answers.jsonl``, streamed and whole.

A line has a request (``more`` beside the plainest body of its API), what the demo model says to it
(one text for each choice), and the events and the whole answer that a client gets. Lines that were
meant to change are written again by ``python -m tests.server.test_answers``; what that changes is
to be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic.types
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from mlxgen.engine import Chunk
from mlxgen.engine.chunk import DraftCount, Usage
from mlxgen.server.reply import Event

from .apis import APIS as CLIENTS
from .kit import chunks_of, demo, news, read_again
from .test_requests import APIS, written

DATA = Path(__file__).parents[1] / "data" / "answers.jsonl"
LINES: Sequence[dict[str, Any]] = [
    json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()
]
READS: Mapping[str, tuple[Any, Any]] = {
    "chat": (ChatCompletionChunk, ChatCompletion),
    "completions": (None, Completion),  # its type knows no choice that goes on
    "messages": (anthropic.types.RawMessageStreamEvent, anthropic.types.Message),
    "responses": (ResponseStreamEvent, Response),
    "llama": (None, None),
}
"""The official clients' types of events and of a whole answer."""
USED = Usage(
    prompt_tokens=7,
    cached_tokens=2,
    drafted_tokens=5,
    accepted_draft_tokens=3,
    drafts={"text": DraftCount(5, 3)},
)


def chunks(line: Mapping[str, Any], delays: Sequence[int]) -> list[list[Chunk]]:
    """What the engine delivers of each choice."""
    known, rows = demo().vocabulary, []
    raw = line["api"] in ("completions", "llama")
    finish = line.get("finish", "stop")
    for text in line["says"]:
        tokens = known.encode(text, special=False) if text and not raw else []
        tokens = known.continue_with(text.encode()) if raw else tokens
        end = sorted(known.eos)[:1] if (finish == "stop" and not raw) or not tokens else []
        row = chunks_of(
            [*tokens, *end],
            known,
            delays=delays,
            finish=finish,
            opens_text=not raw,
            logprob=bool(line["more"].get("logprobs") or line["more"].get("n_probs")),
        )
        rows.append([*row[:-1], replace(row[-1], stop=line.get("stop"))])
    return rows


def answers(
    line: Mapping[str, Any], delays: Sequence[int] = (), used: Usage | None = None
) -> tuple[list[Any], Any]:
    """The events of a stream, and what another reply puts together of its own."""
    parse, _, plainest = APIS[line["api"]]
    body = plainest | line["more"]
    stream, whole = (
        parse(each, demo()).reply(id="id_1", created=1) for each in ({**body, "stream": True}, body)
    )
    rows = chunks(line, delays)
    usages = [used or replace(USED, completion_tokens=len(row)) for row in rows]
    events = read_again(stream.start())
    for event in whole.start():
        whole.fold(event)  # type: ignore[arg-type]
    for index, row in enumerate(rows):
        for chunk in row:
            last = usages[index] if chunk is row[-1] else None
            events += read_again(stream.take(news(chunk, index, last)))
            for event in whole.take(news(chunk, index, last)):
                whole.fold(event)  # type: ignore[arg-type]
    events += read_again(stream.finish(usages))
    for event in whole.finish(usages):
        whole.fold(event)  # type: ignore[arg-type]
    return events, json.loads(json.dumps(whole.whole(), allow_nan=False))


def test_every_answer_is_what_its_line_says_and_what_official_clients_read() -> None:
    for line in LINES:
        events, whole = answers(line)
        assert events == line["events"], line["case"]
        assert whole == line["whole"], line["case"]
        event, complete = READS[line["api"]]
        if event is not None:
            for each in events:
                TypeAdapter(event).validate_python(each)
        if complete is not None:
            complete.model_validate(whole)


# ---- the laws of a stream ------------------------------------------------------------------------


def check_responses(events: Sequence[Event], whole: Any) -> None:
    """Items, and parts of them, come one after the other, and are done with what they said."""
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
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    assert events[-1]["response"]["output"] == items == whole["output"]


def check_messages(events: Sequence[Event], whole: Any) -> None:
    """Blocks come one after the other."""
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
    assert not is_open and len(whole["content"]) == index + 1


LAWS = {"messages": check_messages, "responses": check_responses}
READERS = {str(api): api for api in CLIENTS}


@given(st.sampled_from(LINES), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_an_answer_does_not_depend_on_how_its_text_comes(line: Any, delays: list[int]) -> None:
    events, whole = answers(line, delays)
    if line["api"] in LAWS:
        LAWS[line["api"]](events, whole)
    reader = READERS.get(line["api"])
    if reader is not None and "usage" in events[-1] and len(line["says"]) == 1:
        assert reader.streamed(events) == reader.whole(whole)
    if isinstance(whole, dict) and "usage" in whole:  # where thoughts end is seen when they do
        whole["usage"] = line["whole"]["usage"]
    assert whole == line["whole"]


def write() -> None:
    lines = []
    for line in LINES:
        events, whole = answers(line)
        lines.append(written({**line, "events": events, "whole": whole}) + "\n")
    DATA.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    write()
