"""Who may call the server: API keys, pages of other origins, and names of other hosts.

Owns the decisions that need only a request's head. Must never know routes, except the open paths.
Invariant: a request that a page of another origin, which is not allowed, makes a browser send never
passes the gate, with or without a key.

- A body with two lengths is refused, because a proxy could disagree on where the next request
  begins. h11 refuses two values of ``Content-Length``, but not one next to ``Transfer-Encoding``.
- If there are keys, everything but the open paths and the page's files needs one. The comparison
  takes constant time. The scope then holds the key's digest, under ``OWNER``.
- ``Origin`` must be the server's own or an allowed one. Requests without it that a browser marks
  as cross-site are also refused, unless a person followed a link.
- Without keys, or with ``allow_hosts``, ``Host`` must be an IP address, localhost, the host that
  the server listens on, or an allowed name. Otherwise a page could reach the server through its own
  name, made to resolve to this machine (DNS rebinding). An address cannot resolve elsewhere.

A request that passes has a path of the routes: without the prefix of a proxy, and with ``/v1``
before the API's paths. HEAD becomes GET; uvicorn leaves out the body of its answer.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from typing import TypeAlias
from urllib.parse import quote, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import RequestError
from .wire import error_response

Headers: TypeAlias = dict[bytes, bytes]

OPEN = frozenset({"/", "/health", "/health/live", "/health/ready"})
"""Paths that need no key: they reveal nothing, and the page at / asks for the key itself."""
PAGE = "/page/"  # the files of the page, which need no key either
METHODS = b"GET, POST, OPTIONS"
_HOST = re.compile(r"(?:\[(?P<inner>[0-9a-f:.]+)\]|(?P<name>[^\s\[\]:@/?#\\]*?)\.?)(?::[0-9]*)?")
"""A name or an address, with or without a port. Nothing may follow: a URL parser would take the
text after an @ for the host."""
_SHORT = frozenset({"/chat/completions", "/completions", "/models"})  # without /v1
OWNER = "mlxgen.owner"
"""The key in a request's scope for its owner: a digest of its API key; empty if it needs none."""


class Gate:
    """ASGI middleware around the application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        api_keys: Iterable[str] = (),
        origins: Iterable[str] = (),
        allow_hosts: Iterable[str] = (),
        root: str = "",
    ) -> None:
        self._app = app
        self._root = root.rstrip("/")
        keys = [key.encode() for key in api_keys]
        self._owners = {hashlib.sha256(key).hexdigest(): key for key in keys}
        self._origins = frozenset(origin.lower().encode() for origin in origins)
        self._any_origin = b"*" in self._origins
        allowed = [name.lower() for name in allow_hosts]
        self._hosts: frozenset[str] | None = None  # None: names do not matter
        if not keys or allowed:
            known = (urlsplit(origin).hostname for origin in origins)
            self._hosts = frozenset({"localhost", host.lower(), *allowed, *filter(None, known)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        more = [] if origin is None or not self._is_allowed(origin) else _cors(origin)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        try:
            self._check(scope, headers)
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                more += _preflight(headers)
                await sending({"type": "http.response.start", "status": 204})
                await sending({"type": "http.response.body", "body": b""})
                return
            path = scope["path"]
            if self._root and path.startswith(f"{self._root}/"):
                path = path[len(self._root) :]
            if path in _SHORT or path.startswith("/models/"):
                path = f"/v1{path}"
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            raw = quote(path).encode("ascii")
            owner = ""
            if self._owners and path not in OPEN and not path.startswith(PAGE):
                owner = self._owner(headers)
            scope = {**scope, "method": method, "path": path, "raw_path": raw, OWNER: owner}
        except RequestError as error:
            if error.status == 401:
                more.append((b"www-authenticate", b"Bearer"))
            if error.status == 400:
                more.append((b"connection", b"close"))
            await error_response(error, path=scope["path"])(scope, receive, sending)
            return
        await self._app(scope, receive, sending if more else send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise ``RequestError`` if the length, the host or the origin of a request is wrong."""
        if b"transfer-encoding" in headers and (
            b"content-length" in headers or scope["http_version"] == "1.0"
        ):
            raise RequestError(
                "the length of the body is not clear; send Content-Length, or Transfer-Encoding "
                "with HTTP/1.1, and not both",
                code="invalid_http",
            )
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts is not None:
            match = _HOST.fullmatch(host)
            name = "" if match is None else match["inner"] or match["name"]
            if name not in self._hosts and _address(name) is None:
                raise RequestError(
                    f"{host[:100]!r} is not an allowed name of this server; use its address, or "
                    "start it with --allow-host NAME or with an API key",
                    status=403,
                    code="host_not_allowed",
                )
        origin = headers.get(b"origin")
        if origin is None:
            site, where = headers.get(b"sec-fetch-site", b"none"), "another site"
            follows_link = headers.get(b"sec-fetch-mode") == b"navigate" and (
                scope["method"] == "GET"
            )
            is_allowed = site in (b"none", b"same-origin") or follows_link or self._any_origin
        else:
            where = origin.decode("latin-1")[:100]
            own = (f"http://{host}", f"https://{host}") if host else ()
            is_allowed = origin.decode("latin-1").lower() in own or self._is_allowed(origin)
        if not is_allowed:
            raise RequestError(
                f"pages of {where} may not call this server; allow them with --cors-origin",
                status=403,
                code="origin_not_allowed",
            )

    def _owner(self, headers: Headers) -> str:
        """The digest of the request's key; raises ``RequestError`` (401) without one."""
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = [headers.get(b"x-api-key", b"")]
        given += [token] if scheme.lower() == b"bearer" else []
        found = [
            owner
            for owner, key in self._owners.items()
            for each in given
            if hmac.compare_digest(each.strip(), key)
        ]
        if not found:
            raise RequestError(
                "the API key is missing or wrong; send it in the header Authorization: Bearer KEY, "
                "or X-Api-Key: KEY",
                status=401,
                code="invalid_api_key",
            )
        return found[0]

    def _is_allowed(self, origin: bytes) -> bool:
        return self._any_origin or origin.lower() in self._origins


def is_loopback(host: str) -> bool:
    """Whether a host, an address or a name, can only be reached from this machine."""
    address = _address(host.strip("[]"))
    if address is None:
        return host.lower() in ("localhost", "localhost.")
    return address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _cors(origin: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"retry-after, x-request-id, x-mlxgen-ignored"),
        (b"vary", b"Origin"),
    ]


def _preflight(headers: Headers) -> list[tuple[bytes, bytes]]:
    wanted = headers.get(b"access-control-request-headers", b"authorization, content-type")
    allowed = [
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", wanted),
        (b"access-control-max-age", b"600"),
    ]
    if headers.get(b"access-control-request-private-network") == b"true":
        allowed.append((b"access-control-allow-private-network", b"true"))
    return allowed
