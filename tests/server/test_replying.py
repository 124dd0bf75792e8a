"""A stream that has nothing to say gives signs of life, as its API has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mlxgen.server import replying
from mlxgen.server.anthropic.messages import parse_messages
from mlxgen.server.call import Call, Sent
from mlxgen.server.engine.mailbox import Delivery, Mailbox
from mlxgen.server.exchange import Exchange
from mlxgen.server.http.responses import encode_events
from mlxgen.server.openai.chat import parse_chat
from mlxgen.server.openai_responses.request import parse_responses
from mlxgen.server.served_model import ServedModel

from .openai.kit import chunks_of, demo, usage

HELLO = [{"role": "user", "content": "Hello"}]
SIGNS: list[tuple[Callable[[Any, ServedModel], Call], Mapping[str, Any], str, str]] = [
    (parse_chat, {"messages": HELLO}, ": keepalive\n\n", '"role":"assistant"'),
    (parse_messages, {"messages": HELLO, "max_tokens": 9}, "event: ping\n", "event: message_start"),
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
        self.flows = False
        self.fields: dict[str, Any] = {}
        self.seconds = 0.0
        self.metrics = SimpleNamespace(first_token_seconds=SimpleNamespace(observe=lambda _: None))
        self.service = SimpleNamespace(metrics=self.metrics)

    async def write(self, events: Sequence[Sent]) -> None:
        self.text += encode_events(events).decode()

    finish = write


@pytest.mark.parametrize(("parse", "body", "sign", "start"), SIGNS)
def test_silence_is_broken_before_the_first_token_and_between_tokens(
    parse: Callable[[Any, ServedModel], Call],
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
        streaming = asyncio.create_task(replying._stream(cast(Exchange, line), reply, box))
        seen = 0
        for i, chunk in enumerate(chunks):
            while line.text.count(sign) < seen + 2:
                await asyncio.sleep(0.001)
            box.put(Delivery(0, [chunk], usage() if i else None))
            box.tell()
            seen = line.text.count(sign)
        await streaming
        return line.text

    text = asyncio.run(asyncio.wait_for(main(), 30))
    assert text.count(start) == 1
    if not sign.startswith(":"):  # clients want the beginning before all else
        assert text.index(start) < text.index(sign)
