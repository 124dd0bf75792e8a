"""Bodies of requests: read within a limit, and understood as strict JSON.

Owns everything between the bytes of a body and an object. Must never know what the fields
mean: that, and whether its strings are text, is the API's. Invariant: ``parse_body`` returns
an object without duplicate names, NaN and infinity; for anything else it raises ``RequestError``
with a 4xx status.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from starlette.types import Receive

from ..errors import RequestError
from ..fields import shown

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


async def read_body(receive: Receive, limit: int, took: Callable[[int], None]) -> bytes:
    """The body. ``took`` is called with the length of each part, and may raise to stop reading.

    Raises ``RequestError`` if it is too long or takes too long, and ``ClientGone``.
    """
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
                took(len(part))
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise RequestError(
            f"the body did not arrive within {READING:g} seconds", status=408, code="body_timeout"
        ) from None


def parse_body(data: bytes) -> dict[str, Any]:
    """The object in a body. May run in any thread."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"not UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_no_number,
            parse_float=_finite,
            parse_int=_integer,
        )
    except RecursionError:
        raise _malformed("nested too deeply; make it flatter") from None
    except ValueError as error:
        raise _malformed(str(error)) from None
    if not isinstance(value, dict):
        raise _malformed("expected an object, such as {...}")
    return value


def _malformed(reason: str) -> RequestError:
    return RequestError(f"invalid JSON body: {reason}", code="invalid_json")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    seen = set()
    for name, _ in pairs:
        if name in seen:
            break
        seen.add(name)
    raise _malformed(f"the name {shown(name)} appears twice in one object")


def _no_number(name: str) -> NoReturn:
    raise _malformed(f"{name} is not JSON; leave out the field, or send a number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _malformed(f"the number {text[:40]} is too large")
    return value


def _integer(text: str) -> int:
    if len(text) > 400:
        raise _malformed(f"the number {text[:40]}... is too large")
    return int(text)
