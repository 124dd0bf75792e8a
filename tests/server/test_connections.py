"""Clients that send or read slowly, or nothing, and what is not HTTP."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from .exchanges import lines
from .running import WAIT, Running, Slow, endless

LINES = lines("heads")
HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
TEXT = b"POST /v1/completions HTTP/1.1\r\nContent-Type: text/plain\r\n" + HOST
"""A body that is refused unread."""
ASKED = "mlxgen_requests_in_progress"
PATIENCE = 0.6  # seconds; a busy machine may leave a client for half of that
PIECES = {"prompt": "a b " * 100_000, "with_pieces": True}
"""What has an answer of many megabytes."""


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    """A server with little patience."""
    patience = [f"process.Connection.{side}={PATIENCE}" for side in ("sending", "reading")]
    slow = tmp_path_factory.mktemp("slow") / "slow"
    with Slow(slow, SET=" ".join(patience)) as server:
        yield server


@contextlib.contextmanager
def link(server: Running, *data: bytes, receive: int = 0) -> Iterator[socket.socket]:
    with socket.socket() as client:
        if receive:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        client.settimeout(WAIT)
        client.connect(("127.0.0.1", server.port))
        for each in data:
            client.sendall(each)
        yield client


def answer(client: socket.socket) -> tuple[int, bytes]:
    """The status and the body of the next answer."""
    head, body = b"", b""
    while not head.endswith(b"\r\n\r\n"):
        more = client.recv(1)
        assert more, head
        head += more
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    while len(body) < length:
        body += client.recv(length - len(body))
    return int(head.split()[1]), body


def closed(client: socket.socket) -> bytes:
    """What comes before the server closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while more := client.recv(1 << 16):
            found += more
    return found


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("start", [b"", b"GE", b"GET /health HTTP/1.1\r\n" + HOST])
def test_every_head_has_to_be_sent_in_time(hasty: Running, start: bytes, before: int) -> None:
    with link(hasty) as silent, link(hasty) as slow:
        for client in (silent, slow):
            for _ in range(before):
                client.sendall(GET)
                assert answer(client)[0] == 200
            client.sendall(start)
        with contextlib.suppress(ConnectionError):
            while not select.select([slow], [], [], 0.02)[0]:
                slow.sendall(b"x")
        assert closed(silent) == b""


@pytest.mark.parametrize("rest", [b"", b"abc"])
def test_a_body_that_nobody_reads_does_not_keep_a_connection(hasty: Running, rest: bytes) -> None:
    with link(hasty, TEXT + b"Content-Length: 3\r\n\r\n") as client:
        assert answer(client)[0] == 415
        client.sendall(rest)
        assert closed(client) == b""


def test_three_hundred_who_say_nothing_or_little_keep_nobody_out(server: Running) -> None:
    begun = POST + b"Content-Length: 100\r\n\r\n{"
    with contextlib.ExitStack() as links:
        for n in range(300):  # more than may run and wait
            start = (b"", b"GE", POST, CHUNKED + b"3e8\r\nx", begun, begun)[n % 6]
            links.enter_context(link(server, start))
        server.wait_until(lambda: server.figure(ASKED) >= 150, "they do not wait")
        assert server.chat({"max_tokens": 2}).status_code == 200
    server.wait_until(lambda: server.figure(ASKED) == 0, "they stay")


def test_a_request_that_is_answered_late_is_not_cut(hasty: Slow) -> None:
    body = b'{"prompt": "Once", "max_tokens": 40, "ignore_eos": true, "num_draft_tokens": 0}'
    hasty.slow.touch()
    with link(hasty, GET) as client:
        assert answer(client)[0] == 200
        began = time.monotonic()
        client.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body + GET)
        assert answer(client)[0] == 200
        assert time.monotonic() - began > PATIENCE, "it took longer than any patience"
        assert answer(client)[0] == 200
    hasty.slow.unlink()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", PIECES),
        ("/v1/completions", endless(stream=True, logprobs=20, num_draft_tokens=0)),
    ],
)
def test_an_answer_has_to_be_taken_whole_or_as_a_stream(
    hasty: Running, path: str, body: Mapping[str, Any]
) -> None:
    gone = 'mlxgen_requests_total{endpoint="/v1/completions",outcome="client_gone"}'
    before = hasty.figure(gone)
    with hasty.send(path, body, receive=4096):
        hasty.wait_until(lambda: hasty.figure(ASKED) == 1, "it is not asked")
        hasty.wait_until(lambda: hasty.figure(ASKED) == 0, "it is waited for")
    assert hasty.figure(gone) == before + (path != "/tokenize")


def test_an_answer_that_is_taken_slowly_but_steadily_arrives(hasty: Running) -> None:
    with hasty.send("/tokenize", PIECES, receive=1 << 16) as client:
        began, whole = time.monotonic(), b""
        while b"\r\n\r\n" not in whole or len(whole) < 1 << 20:
            whole += client.recv(1 << 16)
            time.sleep(0.05)
        assert time.monotonic() - began > PATIENCE, "it took longer than any patience"
        length = int(whole.lower().split(b"content-length: ")[1].split()[0])
        left = length - len(whole.partition(b"\r\n\r\n")[2])
        while left > 0:
            more = client.recv(1 << 20)
            assert more, "it was cut"
            left -= len(more)


def test_what_is_not_http_is_refused_and_not_logged_and_heads_can_be_reason_enough(
    server: Running,
) -> None:
    before = len(server.log)
    for line in LINES:
        with link(server, line["sent"].encode()) as client:
            if line.get("http", True):
                assert answer(client)[0] == line["status"], line["case"]
            else:
                assert closed(client).startswith(b"HTTP/1.1 400 "), line["case"]
    server.wait_until(lambda: server.figure(ASKED) == 0, "one stays")
    assert not [line for line in server.log[before:] if "error:" in line or "Traceback" in line]


def test_what_is_not_http_ends_an_answer_that_was_begun_without_a_word(server: Running) -> None:
    with link(server, TEXT + b"Transfer-Encoding: chunked\r\n\r\n") as client:
        assert answer(client)[0] == 415
        client.sendall(b"not a length\r\n")
        assert closed(client) == b""


def test_a_chunked_body_over_the_limit_is_not_read_to_its_end(hasty: Running) -> None:
    with link(hasty, CHUNKED) as client:
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                client.sendall(b"20000\r\n" + b" " * 0x20000 + b"\r\n")
        assert closed(client).startswith(b"HTTP/1.1 413 ")
