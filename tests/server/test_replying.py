"""A stream that has nothing to say gives signs of life, as its API has them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mlxgen.engine import Progress, Usage
from mlxgen.errors import CapacityError, QueueFullError
from mlxgen.server import exchange as replying
from mlxgen.server.ask import Ask
from mlxgen.server.chat import parse_chat
from mlxgen.server.engine.mailbox import Delivery, Mailbox
from mlxgen.server.exchange import Exchange
from mlxgen.server.messages import parse_messages
from mlxgen.server.reply import Sent
from mlxgen.server.responses import parse_responses
from mlxgen.server.served_model import ServedModel
from mlxgen.server.wire import encode_events

from .kit import chunks_of, demo, usage

HELLO = [{"role": "user", "content": "Hello"}]
SIGNS: list[tuple[Callable[[Any, ServedModel], Ask], Mapping[str, Any], str, str]] = [
    (parse_chat, {"messages": HELLO}, ": keepalive 0/", '"role":"assistant"'),
    (
        parse_messages,
        {"messages": HELLO, "max_tokens": 9},
        ": the prompt is being run\n|event: ping\n",
        "event: message_start",
    ),
    (
        parse_responses,
        {"input": "Hello"},
        "event: response.in_progress\n",
        "event: response.created",
    ),
]


class Line:
    """What an exchange would send."""

    def __init__(self) -> None:
        self.text = ""
        self.begun = False
        self.describe_failure: Any = None
        self.fields: dict[str, Any] = {}
        self.seconds = 0.0
        self.metrics = SimpleNamespace(first_token_seconds=SimpleNamespace(observe=lambda _: None))
        self.service = SimpleNamespace(metrics=self.metrics)

    def heard(self, *, all_run: bool) -> None: ...

    async def write(self, events: Sequence[Sent]) -> None:
        self.begun = True
        self.text += encode_events(events).decode()

    finish = write


@pytest.mark.parametrize(("parse", "body", "sign", "start"), SIGNS)
def test_silence_is_broken_before_the_first_token_and_between_tokens(
    parse: Callable[[Any, ServedModel], Ask],
    body: Mapping[str, Any],
    sign: str,
    start: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replying, "SILENCE", 0.01)
    reply = parse({**body, "stream": True}, demo()).reply(id="id", created=0)
    chunks = chunks_of([104, 105], demo().vocabulary)

    async def main() -> str:
        line = Line()
        box = Mailbox(1, on_overflow=lambda: None)
        streaming = asyncio.create_task(replying.stream(cast(Exchange, line), reply, box))
        seen = 0
        for i, chunk in enumerate(chunks):
            while len(re.findall(sign, line.text)) < seen + 2:
                await asyncio.sleep(0.001)
            box.put(Delivery(0, [chunk], usage() if i else None))
            seen = len(re.findall(sign, line.text))
        await streaming
        return line.text

    text = asyncio.run(asyncio.wait_for(main(), 30))
    assert text.count(start) == 1
    if "event: " in text:  # no event of an answer comes before its beginning
        assert text.index(start) < (text + "event: ping").index("event: ping")
        assert text.index(start) < (text + "event: response.in").index("event: response.in")


def test_headers_wait_for_the_engine_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replying, "SILENCE", 900.0)
    call = parse_chat({"messages": HELLO, "stream": True}, demo())

    async def main(refused: bool) -> Any:
        line: Any = Line()
        box = Mailbox(1, on_overflow=lambda: None)
        stream = replying.stream(cast(Exchange, line), call.reply(id="id", created=0), box)
        streaming = asyncio.create_task(stream)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not line.begun
        if refused:
            box.fail(QueueFullError("full"))
        else:
            box.accept()
        for _ in range(5):
            await asyncio.sleep(0)
        assert line.begun is not refused and not line.text
        if refused:
            with pytest.raises(QueueFullError):
                await streaming
        else:
            box.fail(CapacityError("no room"))
            with pytest.raises(CapacityError) as caught:
                await streaming
            await line.write(line.describe_failure(caught.value))
        return line

    asyncio.run(asyncio.wait_for(main(refused=True), 30))
    told = asyncio.run(asyncio.wait_for(main(refused=False), 30)).text
    assert told.index("assistant") < told.index("no room")


def test_what_the_prefix_cache_had_is_known_when_a_message_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replying, "SILENCE", 0.01)
    body = {"messages": HELLO, "max_tokens": 9, "stream": True}
    reply = parse_messages(body, demo()).reply(id="id", created=0)
    known = demo().vocabulary
    chunks = chunks_of(known.encode("Hello there, friend", special=False), known)

    async def main() -> str:
        line, box = Line(), Mailbox(1, on_overflow=lambda: None)
        streaming = asyncio.create_task(replying.stream(cast(Exchange, line), reply, box))
        box.accept()
        while line.text.count(": the prompt is being run") < 2:
            await asyncio.sleep(0.001)
        box.put(Delivery(0, chunks[:1], progress=Progress(Usage(prompt_tokens=20), 0)))  # forced
        run = Usage(prompt_tokens=20, cached_tokens=15)
        box.put(Delivery(0, (), progress=Progress(run, 18)))
        while "message_start" not in line.text:
            await asyncio.sleep(0.001)
        box.put(Delivery(0, chunks[1:], usage()))
        await streaming
        return line.text

    text = asyncio.run(asyncio.wait_for(main(), 30))
    assert "".join(re.findall(r'"text_delta","text":"(.*?)"', text)) == "Hello there, friend"
    assert "event: ping" not in text[: text.index("event: message_start")]
    [start] = re.findall(r'"message_start".*', text)
    assert '"input_tokens":5' in start and '"cache_read_input_tokens":15' in start
