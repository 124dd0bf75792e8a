"""Clients that do their worst to a server, at a scale that the tests leave out.

After every case a good request has to be answered, and the server of a case that went wrong is
replaced.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import httpx

from .kit import Figure, Server

PATIENCE = 30.0  # seconds for an answer
HELD_UP = 1.5  # seconds that a client may hold others up
CUT = 150.0  # seconds after which a sender that dawdles has to be gone
TRICKLERS = 1100
FLOOD = 600
LOG = 200_000  # bytes that a flood may write

Run: TypeAlias = Callable[[Server], str]


class Case(NamedTuple):
    """``wanted``: the beginnings of what may come of it. ``descriptors``: those of its server."""

    name: str
    wanted: tuple[str, ...]
    run: Run
    descriptors: int | None = None


def figures() -> Iterator[Figure]:
    with contextlib.ExitStack() as stack:
        server: Server | None = None
        for case in CASES:
            if case.descriptors is not None:
                with Server("mlxgen", descriptors=case.descriptors) as own:
                    yield result_of(case, own)
                continue
            server = server or stack.enter_context(Server("mlxgen"))
            result = result_of(case, server)
            server = server if result.met else None
            yield result


def result_of(case: Case, server: Server) -> Figure:
    """What a case does to a server, and whether that answers afterwards."""
    try:
        found = case.run(server)
    except (httpx.HTTPError, OSError, subprocess.TimeoutExpired) as error:
        found = "hung" if "imeout" in type(error).__name__ else f"mute ({type(error).__name__})"
    met = found.startswith(case.wanted)
    if not server.answers():
        found, met = f"{found}, and no answer to a good request afterwards", False
    return Figure(case.name, found, " or ".join(case.wanted), met)


def post(server: Server, path: str, body: Any, seconds: float = PATIENCE) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=seconds)


def good(server: Server) -> int:
    return post(server, "/v1/completions", {"prompt": "Hello", "max_tokens": 1}).status_code


def holding_up(path: str, body: Any) -> Run:
    """How long small requests of others wait while four of these are sent, at the longest."""

    def quietly(server: Server) -> None:
        with contextlib.suppress(httpx.HTTPError):
            post(server, path, body, 2 * PATIENCE)

    def run(server: Server) -> str:
        threads = [threading.Thread(target=quietly, args=(server,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        longest = 0.0
        while any(thread.is_alive() for thread in threads):
            start = time.perf_counter()
            good(server)
            longest = max(longest, time.perf_counter() - start)
            time.sleep(0.02)
        return f"{'prompt' if longest <= HELD_UP else 'late'}: {longest:.2f} s at the longest"

    return run


def _connected(server: Server) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=PATIENCE)


def dawdling(rest: bytes, begun: bytes = b"") -> Run:
    """A second request of a connection that comes a byte a second, after what was ``begun`` at
    once: when the server ends it."""

    def run(server: Server) -> str:
        with _connected(server) as link:
            link.sendall(_GET)
            link.recv(65536)
            link.settimeout(1)
            start = time.monotonic()
            with contextlib.suppress(OSError):
                link.sendall(begun)
                for sent in range(len(rest)):
                    if time.monotonic() - start > CUT:
                        return f"kept for {CUT:.0f} s"
                    link.sendall(rest[sent : sent + 1])
                    with contextlib.suppress(TimeoutError):
                        if not link.recv(4096):
                            break
        return f"cut after {time.monotonic() - start:.0f} s"

    return run


def tricklers(server: Server) -> str:
    """Many connections that wait inside their second request, and a good one beside them."""
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(_connected(server)) for _ in range(TRICKLERS)]
        for link in links:
            link.sendall(_GET)
        for link in links:
            link.recv(65536)
            link.sendall(b"P")
        return str(good(server))


def flooded(server: Server) -> str:
    """More connections than there are descriptors; then a good request."""
    with contextlib.ExitStack() as stack:
        for _ in range(FLOOD):
            link = stack.enter_context(socket.socket())
            link.setblocking(False)
            link.connect_ex((server.host, server.port))
        time.sleep(7)
        written = len(server.logged())
    time.sleep(2)
    size = "little" if written < LOG else "much"
    return f"{good(server)}, {size} written to the log ({written} bytes)"


_GET = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_POST = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_MANY = {"prompt": "a", "n": 128, "max_tokens": 1, "prefix_tokens": [5] * 1900}
_PIECES = {"content": "word and word. " * 60_000, "with_pieces": True}

CASES = (
    Case("128 answers to 1,900 prefix tokens", ("prompt",), holding_up("/v1/completions", _MANY)),
    Case("/tokenize with pieces of 900 kB", ("prompt",), holding_up("/tokenize", _PIECES)),
    Case("headers of a byte a second", ("cut",), dawdling(_POST[:-2] + b"\r\nX: " + b"a" * 4000)),
    Case(
        "a body of a byte a second",
        ("cut",),
        dawdling(b" " * 4000, _POST + b"Content-Length: 4000\r\n\r\n"),
    ),
    Case("1,100 connections inside a second request", ("200",), tricklers),
    Case("256 descriptors and 600 connections", ("200, little",), flooded, 256),
)
