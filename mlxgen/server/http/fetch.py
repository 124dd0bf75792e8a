"""Fetching a file from the internet, because a client named its address.

Owns what is connected to, and how much and how long is read. Must never know what the file is for.
Invariant: a connection goes to an address that was checked, and only public ones pass: a name is
looked up once for each hop, all of its addresses must be public, and a redirect is checked like the
first address. No proxy is used, and nothing that belongs to the server is sent.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

MOST_BYTES = 20 << 20
SECONDS = 10.0  # from the first look-up to the last byte
_HOPS = 4
_REDIRECTS = (301, 302, 303, 307, 308)
_EMBEDDED = ipaddress.IPv6Network("64:ff9b::/96")  # of IPv4 addresses, as translators write them
_GLOBAL = ipaddress.IPv6Network("2000::/3")  # all that was ever given out
_EXAMPLES = ipaddress.IPv6Network("3fff::/20")  # for documentation, which Python 3.11 does not know
_HEADERS = {"User-Agent": "mlxgen", "Accept": "image/*", "Accept-Encoding": "identity"}


class FetchError(Exception):
    """A file cannot be fetched; the message says why, and has nothing of an answer in it.

    ``status`` is 400 if the address is at fault, and 502 if the server there is.
    """

    def __init__(self, message: str, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


def fetch(url: str, *, most: int = MOST_BYTES, seconds: float = SECONDS) -> bytes:
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
        with _ended_at(until, sock):
            connection.request("GET", target, headers=headers)
            with contextlib.closing(connection.getresponse()) as answer:
                found = _answer(answer, most)
                short = isinstance(found, bytes) and bool(answer.length)
            _left(until)  # else it may have been cut off
        if short:
            raise FetchError("its server sends less than it announced")
        return found
    finally:
        sock.close()


def _answer(answer: http.client.HTTPResponse, most: int) -> bytes | str:
    if answer.status in _REDIRECTS:
        return answer.getheader("Location") or ""
    if answer.status != 200:
        raise FetchError(f"its server answers {answer.status}")
    data = answer.read(most + 1)
    if len(data) > most:
        raise FetchError(f"it has more than {most} bytes")
    return data


@contextlib.contextmanager
def _ended_at(until: float, sock: socket.socket) -> Iterator[None]:
    """A context in which a connection is cut at that time: a server could send its headers byte by
    byte for ever."""

    def cut() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(_left(until), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _connected(host: str, port: int, until: float) -> socket.socket:
    """A connection to one of a host's addresses, all of which are public."""
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
    """Whether an address belongs to the public internet, however it is written."""
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
    """Seconds that are left."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
