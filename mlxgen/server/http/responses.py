"""JSON answers and server-sent events.

Owns the format of both. Must never know what an event says. Invariant: one event is one
``data:`` line, whatever text is in it; one that says its ``type`` has an ``event:`` line of that
name before it, as the APIs with such events have.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeAlias

from fastapi import Response

from ..errors import as_messages_error, error_body
from ..reply import Aside, Sent

Header: TypeAlias = tuple[bytes, bytes]

MESSAGES = "/v1/messages"
DONE = b"data: [DONE]\n\n"
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
    return to_text(value).encode("utf-8", "replace")  # a model may write lone surrogates


def encode_events(events: Iterable[Sent]) -> bytes:
    """Events as bytes of the stream."""
    return "".join([_framed(event) for event in events]).encode("utf-8", "replace")


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
