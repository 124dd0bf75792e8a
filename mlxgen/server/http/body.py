"""Bodies of requests, read within limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.types import Receive

from ..errors import RequestError

READING = 30.0  # seconds for a body to arrive


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
