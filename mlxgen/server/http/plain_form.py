"""Brings what HTTP lets clients express in several ways into one form.

Owns this normalisation, before anything else sees a request. Must never know a route. Invariant:
after it a target is a path, ``Host`` names the host that was asked for, and a body has one length.

- The absolute form of a target (``GET http://host/path``) becomes a path, and its host replaces
  the header.
- HEAD becomes GET, without the body of the answer.
- A body with two lengths (``Content-Length`` together with ``Transfer-Encoding``) is refused and
  the connection closed, because readers could disagree on where the next request begins.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import RequestError
from .responses import error_response

_SHORT = frozenset({"/chat/completions", "/completions", "/models"})  # without /v1
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)


class PlainForm:
    """ASGI middleware around the application."""

    def __init__(self, app: ASGIApp, *, root: str = "") -> None:
        self._app = app
        self._root = root.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _check_length(scope)
            scope = self._plain_path(_with_path(scope))
        except RequestError as error:
            await error_response(error, [(b"connection", b"close")])(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, _without_body(send)
        await self._app(scope, receive, send)

    def _plain_path(self, scope: Scope) -> Scope:
        """Without the proxy's prefix, and with ``/v1`` before the API's paths."""
        given = path = scope["path"]
        if self._root and path.startswith(f"{self._root}/"):
            path = path[len(self._root) :]
        if path in _SHORT or path.startswith("/models/"):
            path = f"/v1{path}"
        if path == given:
            return scope
        return {**scope, "path": path, "raw_path": quote(path).encode("ascii")}


def _check_length(scope: Scope) -> None:
    names = {name for name, _ in scope["headers"]}
    if b"transfer-encoding" not in names:
        return
    if b"content-length" in names:
        raise RequestError(
            "the body has two lengths; send either Content-Length or Transfer-Encoding",
            code="invalid_http",
        )
    if scope["http_version"] == "1.0":
        raise RequestError(
            "Transfer-Encoding is not part of HTTP/1.0; send Content-Length, or use HTTP/1.1",
            code="invalid_http",
        )


def _with_path(scope: Scope) -> Scope:
    target: bytes = scope.get("raw_path") or b""
    match = _ABSOLUTE.match(target)
    if match is None:
        return scope
    host = match[1]
    if not host or b"@" in host:
        raise RequestError(
            "the target of the request names no host; send a path or http://host/path",
            code="invalid_http",
        )
    path = target[match.end() :] or b"/"
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    return {
        **scope,
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "headers": [(b"host", host), *others],
    }


def _without_body(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return sending
