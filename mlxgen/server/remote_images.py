"""Fetches images that a request names by http or https addresses, if the server may do so.

This happens before the request is interpreted, in separate threads; the images then replace their
addresses as ``data:`` addresses, so that no reader of the request needs a network. Only images in
messages are fetched, at the places where an API has them; anything else that looks like an image
(in a call's arguments, a tool's schema, metadata) stays as it is.

Invariant: connections only go to addresses that were checked and are public: a name is looked up
once for each hop, all of its addresses must be public, and a redirect is checked like the first
address. No proxy is used, and no data of the server is sent.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urljoin, urlsplit

from .errors import RequestError
from .fields import Path, place_of

MOST_IMAGES = 16  # of one request
MOST_BYTES = 64 << 20  # of all images of one request
LARGEST = 20 << 20  # bytes of one image
SECONDS = 10.0  # from the first look-up to the last byte
_HOPS = 4
_REDIRECTS = (301, 302, 303, 307, 308)
_EMBEDDED = ipaddress.IPv6Network("64:ff9b::/96")  # IPv4 addresses, as translated by NAT64
_GLOBAL = ipaddress.IPv6Network("2000::/3")  # all IPv6 addresses that were ever allocated
_EXAMPLES = ipaddress.IPv6Network("3fff::/20")  # for documentation, which Python 3.11 does not know
_HEADERS = {"User-Agent": "mlxgen", "Accept": "image/*", "Accept-Encoding": "identity"}


class FetchError(Exception):
    """A file cannot be fetched; the message says why, and quotes nothing of an answer.

    ``status`` is 400 if the address is at fault, and 502 if its server is.
    """

    def __init__(self, message: str, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


async def put_into(body: dict[str, Any], get: Callable[[str], bytes] | None = None) -> None:
    """Replace the addresses of images in a body by the images; ``get`` returns the bytes at an
    address. Raises ``RequestError``.

    Only an image in the user's newest message can be at fault. One of the history that cannot be
    had, or that is one too many, stays an address, and becomes a note.

    Each request has its own threads, so that its slow addresses delay no other request.
    """
    named = [each for name in ("messages", "input") for each in _named(body.get(name), (name,))]
    if not named:
        return
    asked = [each for each in named if _is_asked(each[2], body)]
    if len(asked) > MOST_IMAGES:
        raise RequestError.at(
            place_of(asked[MOST_IMAGES][2]),
            f"expected at most {MOST_IMAGES} images to fetch, got {len(asked)}",
        )
    others = [each for each in named if each not in asked]
    named = [*others[max(0, len(others) + len(asked) - MOST_IMAGES) :], *asked]
    urls = list(dict.fromkeys(holder[key] for holder, key, _ in named))
    threads = ThreadPoolExecutor(len(urls), "fetch")
    try:
        run, own = asyncio.get_running_loop().run_in_executor, get or fetch
        jobs = [run(threads, own, url) for url in urls]
        fetched = await asyncio.gather(*jobs, return_exceptions=True)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
    found, total = dict(zip(urls, fetched, strict=True)), 0
    for holder, key, path in reversed(named):
        data, at = found[holder[key]], place_of(path)
        if isinstance(data, FetchError):
            if not _is_asked(path, body):
                continue
            reason = f"{at}: the image cannot be fetched: {data}"
            raise RequestError(reason, status=data.status, param=at, code="fetch_failed")
        if isinstance(data, BaseException):
            raise data
        total += len(data)
        if total > MOST_BYTES:
            if not _is_asked(path, body):
                continue
            raise RequestError.at(
                at, f"with this one, the images have more than {MOST_BYTES} bytes; send fewer"
            )
        text = base64.b64encode(data).decode()
        holder[key] = f"data:application/octet-stream;base64,{text}"


def _is_asked(path: Path, body: dict[str, Any]) -> bool:
    """Whether a place is in the user's newest message, and not in the result of a tool there."""
    pieces, place = body[str(path[0])], path[1]
    newest = pieces[place] if place == len(pieces) - 1 else None
    is_users = isinstance(newest, dict) and newest.get("role") == "user"
    return is_users and "content" not in path[3:]


def _named(value: Any, path: Path) -> Iterator[tuple[dict[str, Any], str, Path]]:
    """The http addresses of images in messages or input items, their contents and the outputs of
    functions, in order: the object that holds each, its key there, and its path in the body."""
    if isinstance(value, list):
        for i, each in enumerate(value):
            yield from _named(each, (*path, i))
    if not isinstance(value, dict):
        return
    place = {
        "image_url": (value.get("image_url"), "url", (*path, "image_url")),
        "input_image": (value, "image_url", path),
        "image": (value.get("source"), "url", (*path, "source")),
    }.get(str(value.get("type")))
    if place is not None and isinstance(holder := place[0], dict):
        url = holder.get(place[1])
        if isinstance(url, str) and url[:8].lower().startswith(("http://", "https://")):
            yield holder, place[1], (*place[2], place[1])
    for key in ("content", "output"):
        yield from _named(value.get(key), (*path, key))


# ---- fetching ---------------------------------------------------------------------------------


def fetch(url: str, *, most: int = LARGEST, seconds: float = SECONDS) -> bytes:
    """The bytes at an http or https address; raises ``FetchError``."""
    until = time.monotonic() + seconds
    for _ in range(_HOPS):
        try:
            found = _visit(url, most, until)
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        except (OSError, http.client.HTTPException, ValueError) as error:
            late = time.monotonic() >= until
            raise FetchError(
                f"it takes more than {seconds:g} seconds" if late else "its server fails"
            ) from error
    raise FetchError(f"it is redirected more than {_HOPS - 1} times")


def _visit(url: str, most: int, until: float) -> bytes | str:
    """The bytes at an address, or the address that it is redirected to."""
    parts = urlsplit(url)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    if usual is None or not parts.hostname:
        raise FetchError("it is not an http or https address", 400)
    if parts.username is not None or parts.password is not None:
        raise FetchError("it has a user name or a password in it", 400)
    host, port = parts.hostname, parts.port or usual
    if not host.isascii():
        host = host.encode("idna").decode()
    sock = _connected(host, port, until)
    try:
        if parts.scheme == "https":
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
        connection = http.client.HTTPConnection(host, port)
        connection.sock = sock
        name = f"[{host}]" if ":" in host else host
        headers = {"Host": name if port == usual else f"{name}:{port}", **_HEADERS}
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        timer = threading.Timer(_left(until), _cut, [sock])  # headers may arrive byte by byte
        timer.daemon = True
        timer.start()
        try:
            connection.request("GET", target, headers=headers)
            with contextlib.closing(connection.getresponse()) as answer:
                if answer.status in _REDIRECTS:
                    return answer.getheader("Location") or ""
                if answer.status != 200:
                    raise FetchError(f"its server answers {answer.status}")
                data = answer.read(most + 1)
                _left(until)  # raises if the timer may have cut the answer off
        finally:
            timer.cancel()
        if len(data) > most:
            raise FetchError(f"it has more than {most} bytes")
        if answer.length:
            raise FetchError("its server sends less than it announced")
        return data
    finally:
        sock.close()


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _connected(host: str, port: int, until: float) -> socket.socket:
    """A connection to one of a host's addresses, all of which must be public."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_, where in found:
        if not is_public(str(where[0])):
            raise FetchError("its host is not on the public internet", 400)
    failed: OSError | None = None
    for family, kind, protocol, _, where in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(until))
            sock.connect(where)
        except OSError as error:
            sock.close()
            failed = error
        else:
            return sock
    raise failed or FetchError("its host has no address")


def is_public(text: str) -> bool:
    """Whether an address is on the public internet, in whatever form it is written."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and address in _EMBEDDED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            address = inner
        elif address not in _GLOBAL or address in _EXAMPLES:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _left(until: float) -> float:
    """The seconds left; raises ``TimeoutError`` if there are none."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
