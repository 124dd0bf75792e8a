"""What is fetched for a client: public addresses only, and within limits of bytes and time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mlxgen.server import remote_images as module
from mlxgen.server.remote_images import FetchError, fetch, is_public

Answer = Callable[[socket.socket], None]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.9", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:127.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("64:ff9b:1::5db8:d822", False),
        ("192.0.2.1", False),
        ("198.51.100.7", False),
        ("203.0.113.9", False),
        ("2001:db8::1", False),
        ("3fff::1", False),
        ("fec0::1", False),
        ("5f00::1", False),
        ("::93.184.216.34", False),
    ],
)
def test_only_addresses_of_the_internet_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], int]]:
    """Starts a server that answers each connection in the same way, and gives its port."""
    listeners: list[socket.socket] = []

    def start(answer: Answer) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                with link:
                    try:
                        link.recv(1 << 16)
                        answer(link)
                    except OSError:
                        pass

        threading.Thread(target=run, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names lead here, as if this were the internet, but for those that begin with ``inner``."""
    asked: list[str] = []

    def looked_up(host: str, port: int, **more: Any) -> list[Any]:
        asked.append(host)
        address = "10.0.0.1" if host.startswith("inner") else "127.0.0.1"
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]
        if host.startswith("both"):
            found.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", port)))
        return found

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    monkeypatch.setattr(module, "is_public", lambda text: text == "127.0.0.1")
    return asked


def saying(text: str, body: bytes = b"") -> Answer:
    return lambda link: link.sendall(f"HTTP/1.1 {text}\r\n\r\n".encode() + body)


def test_a_file_is_fetched_and_its_name_looked_up_once(
    serve: Callable[[Answer], int], lookups: list[str]
) -> None:
    port = serve(saying("200 OK\r\nContent-Length: 3", b"abc"))
    assert fetch(f"http://example.org:{port}/a?b=c") == b"abc"
    assert lookups == ["example.org"]


def test_a_redirect_is_checked_like_the_first_address(
    serve: Callable[[Answer], int], lookups: list[str]
) -> None:
    port = serve(saying("302 Found\r\nLocation: http://inner.example/secret"))
    with pytest.raises(FetchError, match="not on the public internet"):
        fetch(f"http://example.org:{port}/")
    assert lookups == ["example.org", "inner.example"]


def test_all_addresses_of_a_name_are_checked(lookups: list[str]) -> None:
    with pytest.raises(FetchError, match="not on the public internet"):
        fetch("http://both.example/")


@pytest.mark.parametrize("where", ["http://[broken", "http://[::1", "//[/", "", "http://a:b/"])
def test_a_broken_redirect_is_the_fault_of_its_server(
    serve: Callable[[Answer], int], lookups: list[str], where: str
) -> None:
    port = serve(saying(f"302 Found\r\nLocation: {where}"))
    with pytest.raises(FetchError) as caught:
        fetch(f"http://example.org:{port}/")
    assert caught.value.status == 502


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("Content-Length: 900", b"abc"),
        ("Transfer-Encoding: chunked", b"20\r\nabc"),
        ("Transfer-Encoding: chunked", b"3\r\nabc\r\n"),
    ],
)
def test_half_an_answer_is_none(
    serve: Callable[[Answer], int], lookups: list[str], head: str, body: bytes
) -> None:
    port = serve(saying(f"200 OK\r\n{head}", body))
    with pytest.raises(FetchError) as caught:
        fetch(f"http://example.org:{port}/")
    assert caught.value.status == 502


def test_redirects_end(serve: Callable[[Answer], int], lookups: list[str]) -> None:
    port = serve(saying("302 Found\r\nLocation: /again"))
    with pytest.raises(FetchError, match="redirected more than 3 times"):
        fetch(f"http://example.org:{port}/")
    assert len(lookups) == 4


@pytest.mark.parametrize("length", ["Content-Length: 5000\r\n", ""])
def test_no_more_is_read_than_allowed(
    serve: Callable[[Answer], int], lookups: list[str], length: str
) -> None:
    port = serve(saying(f"200 OK\r\n{length}Connection: close", bytes(5000)))
    with pytest.raises(FetchError, match="more than 4000 bytes"):
        fetch(f"http://example.org:{port}/", most=4000)


@pytest.mark.parametrize(
    "head", ["HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"]
)
def test_a_server_that_dawdles_is_left(
    serve: Callable[[Answer], int], lookups: list[str], head: str
) -> None:
    def dawdle(link: socket.socket) -> None:
        link.sendall(head.encode())
        while True:
            link.sendall(b"a")
            threading.Event().wait(0.01)

    port = serve(dawdle)
    with pytest.raises(FetchError, match=r"takes more than 0\.3 seconds"):
        fetch(f"http://example.org:{port}/", seconds=0.3)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://example.org/a", "not an http or https address"),
        ("http:///a", "not an http or https address"),
        ("http://me:secret@example.org/", "user name or a password"),
        ("http://example.org:99999/", "its server fails"),
        ("http://127.0.0.1:1/", "not on the public internet"),
        ("http://2130706433/", "not on the public internet"),
        ("http://[::1]/", "not on the public internet"),
        ("http://localhost/", "not on the public internet"),
    ],
)
def test_what_is_not_a_public_address_is_not_visited(url: str, message: str) -> None:
    with pytest.raises(FetchError, match=message) as caught:
        fetch(url)
    assert caught.value.status == (502 if "fails" in message else 400)


def test_an_error_of_the_server_is_one_here(
    serve: Callable[[Answer], int], lookups: list[str]
) -> None:
    port = serve(saying("404 Not Found\r\nContent-Length: 0"))
    with pytest.raises(FetchError, match="answers 404"):
        fetch(f"http://example.org:{port}/")
