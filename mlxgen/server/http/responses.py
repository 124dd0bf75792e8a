"""JSON answers and server-sent events.

Owns the format of both. Must never know what an event says. Invariant: one event is one
``data:`` line, whatever text is in it; one that says its ``type`` has an ``event:`` line of that
name before it, as the APIs with such events have.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from fastapi import Response

from ..errors import as_messages_error, error_body
from ..reply import Aside, Sent

Header: TypeAlias = tuple[bytes, bytes]

MESSAGES = "/v1/messages"
DONE = b"data: [DONE]\n\n"
_SLICE = 1024  # items of a list that are written at once
STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not buffer
)


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def to_text(value: Any) -> str:
    """A value as JSON without line breaks."""
    return _JSON.encode(value)


def to_json(value: Any) -> bytes:
    """The same as UTF-8."""
    return _utf8(to_text(value))


def _utf8(text: str) -> bytes:
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


def encode_events(events: Iterable[Sent]) -> bytes:
    """Events as bytes of the stream."""
    return _utf8("".join([_framed(event) for event in events]))


def _framed(event: Sent) -> str:
    if isinstance(event, Aside):
        return f"{event.text}\n\n"
    if isinstance(event, str):
        return f"data: {event}\n\n"
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {to_text(event)}\n\n"


class JsonResponse(Response):
    """A value as JSON, or the bytes that were made of one."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else to_json(content)


def error_response(
    error: BaseException, headers: Iterable[Header] = (), path: str = ""
) -> Response:
    """The whole answer to a failed request, as the API at this path has it."""
    status, body = error_body(error)
    if path.startswith(MESSAGES):
        body = as_messages_error(status, body)
    response = JsonResponse(body, status)
    response.raw_headers.extend(headers)
    return response
