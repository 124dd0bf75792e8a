"""What comes and goes over a connection: bodies within limits, and JSON answers and events.

Must never know what an event says. Invariant: one event is one ``data:`` line, whatever text is in
it; one that says its ``type`` has an ``event:`` line of that name before it, as the APIs with such
events have. No blank line follows a comment: readers that keep the last id would take it for the
end of an event without data.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, TypeAlias

from fastapi import Response
from starlette.types import Receive

from .errors import RequestError, as_messages_error, error_body
from .reply import Aside, Sent

Header: TypeAlias = tuple[bytes, bytes]

MESSAGES = "/v1/messages"
DONE = b"data: [DONE]\n\n"
STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not buffer
)
READING = 30.0  # seconds for a body to arrive
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
        return f"{event.text}\n" if event.text.startswith(":") else f"{event.text}\n\n"
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


# ---- bodies -----------------------------------------------------------------------------------


class ClientGone(Exception):  # noqa: N818 (nothing went wrong)
    """The client hung up; nobody is waiting for an answer."""


def check_headers(headers: Iterable[tuple[bytes, bytes]], limit: int) -> None:
    """Raise ``RequestError`` for a body that need not be read."""
    given = dict(headers)
    kind = given.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind and kind != b"application/json" and not kind.endswith(b"+json"):
        raise RequestError(
            f"expected a JSON body, got the type {kind.decode('latin-1')!r}; send JSON with the "
            "header Content-Type: application/json",
            status=415,
            code="unsupported_media_type",
        )
    if given.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise RequestError(
            "expected an uncompressed body; send it without Content-Encoding",
            status=415,
            code="unsupported_media_type",
        )
    length = given.get(b"content-length", b"")
    if length.isdigit() and int(length[:19]) > limit:
        raise too_large(limit)


def too_large(limit: int) -> RequestError:
    """The error of a body that is longer than ``limit``."""
    return RequestError(
        f"the prompt is too long: the body is larger than {limit} bytes, the most for the model's "
        "maximum context length; shorten it",
        status=413,
        code="body_too_large",
    )


async def read_body(receive: Receive, limit: int) -> bytes:
    """The body. Raises ``RequestError`` if it is too long or takes too long, and ``ClientGone``."""
    parts: list[bytes] = []
    total = 0
    try:
        async with asyncio.timeout(READING):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part: bytes = message.get("body", b"")
                total += len(part)
                if total > limit:
                    raise too_large(limit)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise RequestError(
            f"the body did not arrive within {READING:g} seconds", status=408, code="body_timeout"
        ) from None
