"""JSON answers and server-sent events, as bytes and as ASGI messages.

Owns the format of both. Must never know what an event says. Invariant: one event is one
``data:`` line, whatever text is in it, and a stream ends with ``end``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from typing import Any, TypeAlias

from .errors import error_body

Header: TypeAlias = tuple[bytes, bytes]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

DONE = b"data: [DONE]\n\n"
_SLICE = 1024  # items of a list that are written at once
_STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not buffer
)


def to_json(value: Any) -> bytes:
    """A value as UTF-8 JSON without line breaks."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace")  # a model's text may contain lone surrogates


def to_large_json(value: Any, depth: int = 6) -> bytes:
    """The same, part by part, so that other threads run while a large value is written.

    An iterator is written as a list without being held as one: a million small objects at once
    would stop every thread while Python's collector walks through them.
    """
    return b"".join(_parts(value, depth))


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    if not depth or not value or not isinstance(value, dict | list | Iterator):
        yield to_json(value)
        return
    if isinstance(value, Iterator) or (isinstance(value, list) and depth == 1):
        items = iter(value)
        before = b"["
        while some := list(itertools.islice(items, _SLICE)):
            yield before + to_json(some)[1:-1]
            before = b","
        yield b"[]" if before == b"[" else b"]"
        return
    before = b"{" if isinstance(value, dict) else b"["
    for item in value:
        yield before
        before = b","
        if isinstance(value, dict):
            yield to_json(item) + b":"
            yield from _parts(value[item], depth - 1)
        else:
            yield from _parts(item, depth - 1)
    yield b"}" if isinstance(value, dict) else b"]"


def encode_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Events as bytes of the stream."""
    return b"".join(b"data: " + to_json(event) + b"\n\n" for event in events)


async def send_json(
    send: Send, status: int, body: bytes, *, headers: Sequence[Header] = ()
) -> None:
    """Send a whole answer that ``to_json`` made."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: BaseException, *, headers: Sequence[Header] = ()) -> None:
    """Send the whole answer to a failed request."""
    status, value = error_body(error)
    await send_json(send, status, to_json(value), headers=headers)


class EventStream:
    """The events of one answer: ``start`` once, ``write`` any number of times, ``finish`` once."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self.end = DONE

    async def start(self, headers: Sequence[Header] = ()) -> None:
        """Send the headers; after this a failure can only be an event."""
        self.started = True
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*_STREAM, *headers]}
        )

    async def write(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Send events in one piece; waits while the client does not read."""
        if events:
            body = encode_events(events)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self, events: Sequence[Mapping[str, Any]] = ()) -> None:
        """Send the last events and the end."""
        body = encode_events(events) + self.end
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
