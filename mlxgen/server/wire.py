"""The bytes on a connection: JSON answers and events, and which bodies are read at all.

Must never know what an event says. Invariant: an event is one ``data:`` line, whatever its text; an
event with a ``type`` has an ``event:`` line of that name before it, as its API requires. No blank
line follows a comment: readers that keep the last id would take it for the end of an event without
data.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from itertools import islice
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
PIECE = 1024  # items of a list that are encoded in one call
_FEW = 128  # items at most of a list whose items may be long, such as choices
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class ClientGone(Exception):  # noqa: N818 (nothing went wrong)
    """The client hung up."""


def to_text(value: Any) -> str:
    """A value as JSON without line breaks."""
    return _JSON.encode(value)


def to_json(value: Any) -> bytes:
    """The same as UTF-8. Long lists, and iterators, which become lists, are encoded in pieces: each
    call of the encoder holds the interpreter's lock, and so holds up all other threads."""
    return b"".join([piece.encode("utf-8", "replace") for piece in _pieces(value)])


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for i, (name, inner) in enumerate(value.items()):
            yield f"{',' if i else '{'}{to_text(str(name))}:"
            yield from _pieces(inner)
        yield "}"
    elif isinstance(value, list) and 0 < len(value) <= _FEW:
        for i, inner in enumerate(value):
            yield "," if i else "["
            yield from _pieces(inner)
        yield "]"
    elif isinstance(value, (list, Iterator)):
        items, before = iter(value), "["
        while piece := [*islice(items, PIECE)]:
            yield before + to_text(piece)[1:-1]
            before = ","
        yield "]" if before == "," else "[]"
    else:
        yield to_text(value)


def encoded(event: Sent) -> bytes:
    """An event as bytes of the stream."""
    if isinstance(event, Aside):
        text = f"{event.text}\n" if event.text.startswith(":") else f"{event.text}\n\n"
    else:
        name = f"event: {event['type']}\n" if "type" in event else ""
        text = f"{name}data: {_JSON.encode(event)}\n\n"
    return text.encode("utf-8", "replace")  # a model may write lone surrogates


class JsonResponse(Response):
    """A value as JSON, or bytes that are JSON already."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else to_json(content)


def error_response(
    error: BaseException, headers: Iterable[Header] = (), path: str = ""
) -> Response:
    """The whole answer to a failed request, in the form of the API at this path."""
    status, body = error_body(error)
    if path.startswith(MESSAGES):
        body = as_messages_error(status, body)
    response = JsonResponse(body, status)
    response.raw_headers.extend(headers)
    return response


async def body_of(receive: Receive, headers: Iterable[Header], limit: int) -> bytes:
    """The body of a request, of at most ``limit`` bytes; raises ``RequestError``, or ``ClientGone``
    if the client hangs up before its end."""
    given, parts = dict(headers), list[bytes]()
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
    size, said, more = 0, int(length[:19]) if length.isdigit() else 0, True
    try:
        async with asyncio.timeout(READING):
            while more and max(size, said) <= limit:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                more = message.get("more_body", False)
    except TimeoutError:
        reason = f"the body did not arrive within {READING:g} seconds"
        raise RequestError(reason, status=408, code="body_timeout") from None
    if max(size, said) > limit:
        raise RequestError(
            f"the prompt is too long: the body is larger than {limit} bytes; shorten it",
            status=413,
            code="body_too_large",
        )
    return b"".join(parts)
