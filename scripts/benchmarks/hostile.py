"""Clients of a server that do their worst, and what should come of each.

Each case was a way to stop, fill or fool a server of this kind. After every case a good request has
to be answered, and the server of a case that went wrong is replaced.
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

from .figures import Figure
from .process import Server
from .traffic import CHAT, COMPLETION, schema_format

PATIENCE = 30.0  # seconds for an answer
HELD_UP = 1.5  # seconds that a client may hold others up
CUT = 150.0  # seconds after which a sender that dawdles has to be gone
TRICKLERS = 1100
FLOOD = 600
LOG = 200_000  # bytes that a flood may write

Run: TypeAlias = Callable[[Server], str]


class Case(NamedTuple):
    """``wanted``: the beginnings of what may come of it. ``arguments``: of a server of its own."""

    name: str
    wanted: tuple[str, ...]
    run: Run
    arguments: tuple[str, ...] | None = None
    descriptors: int | None = None


def figures() -> Iterator[Figure]:
    server: Server | None = None
    try:
        for case in CASES:
            if case.arguments is not None:
                with Server("mlxgen", case.arguments, descriptors=case.descriptors) as own:
                    yield result_of(case, own)
                continue
            if server is None:
                server = Server("mlxgen")
                server.start()
            result = result_of(case, server)
            if not result.met:
                server.stop()
                server = None
            yield result
    finally:
        if server is not None:
            server.stop()


def result_of(case: Case, server: Server) -> Figure:
    """What a case does to a server, and whether that answers afterwards."""
    try:
        found = case.run(server)
    except (httpx.HTTPError, OSError, subprocess.TimeoutExpired) as error:
        found = "hung" if "imeout" in type(error).__name__ else f"mute ({type(error).__name__})"
    met = found.startswith(case.wanted)
    if found != STOPPED and not server.answers():
        found, met = f"{found}, and no answer to a good request afterwards", False
    return Figure(case.name, found, " or ".join(case.wanted), met)


# ---- asking ------------------------------------------------------------------------------------


def sending(path: str, body: Any) -> Run:
    """What a body gets: the status, and the message of an error."""

    def run(server: Server) -> str:
        response = post(server, path, body)
        if response.status_code < 400:
            return str(response.status_code)
        message = response.json().get("error", {}).get("message", "")
        return f"{response.status_code} {message[:120]}"

    return run


def templated(**variables: Any) -> Run:
    """A chat whose client sets these for the chat template."""
    return sending(CHAT, _chat(chat_template_kwargs=variables))


def schema_of(count: int) -> Run:
    """A chat under a schema of so many optional properties."""
    names = [f"field_{i}" for i in range(count)]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    return sending(CHAT, _chat(response_format=schema_format(schema), temperature=0, max_tokens=30))


def _chat(**fields: Any) -> dict[str, Any]:
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    return {"messages": asked, "max_tokens": 4, **fields}


def post(server: Server, path: str, body: Any, seconds: float = PATIENCE) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=seconds)


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
            post(server, COMPLETION, {"prompt": "Hello", "max_tokens": 1})
            longest = max(longest, time.perf_counter() - start)
            time.sleep(0.02)
        return f"{'prompt' if longest <= HELD_UP else 'late'}: {longest:.2f} s at the longest"

    return run


# ---- bytes -------------------------------------------------------------------------------------


def speaking(data: bytes) -> Run:
    """What bytes get as an answer: the status, and whether the connection was closed after it."""

    def run(server: Server) -> str:
        with _connected(server) as link:
            link.sendall(data.replace(b"HOST", f"{server.host}:{server.port}".encode()))
            answer = _read_answer(link)
            status = answer.split(b" ")[1].decode() if b" " in answer else "no answer"
            link.settimeout(1)
            try:
                closed = link.recv(1) == b""
            except TimeoutError:
                closed = False
            body = answer.partition(b"\r\n\r\n")[2]
            return f"{status}, {'closed' if closed else 'kept'}, {'a' if body else 'no'} body"

    return run


def _connected(server: Server) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=PATIENCE)


def _read_answer(link: socket.socket) -> bytes:
    """An answer: all that comes until a second passes without more."""
    data = link.recv(65536)
    link.settimeout(1)
    with contextlib.suppress(TimeoutError):
        while piece := link.recv(65536):
            data += piece
    return data


def dawdling(rest: bytes, begun: bytes = b"") -> Run:
    """A second request of a connection that comes a byte a second, after what was ``begun`` at
    once: when the server ends it."""

    def run(server: Server) -> str:
        with _connected(server) as link:
            link.sendall(_GET)
            _read_answer(link)
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
        return str(post(server, COMPLETION, {"prompt": "a", "max_tokens": 1}).status_code)


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
    status = post(server, COMPLETION, {"prompt": "a", "max_tokens": 1}).status_code
    size = "little" if written < LOG else "much"
    return f"{status}, {size} written to the log ({written} bytes)"


def stopped_twice(server: Server) -> str:
    """SIGTERM, and SIGTERM again and again while it ends."""
    assert server.process is not None
    for _ in range(400):
        server.process.terminate()
        time.sleep(0.01)
        if server.process.poll() is not None:
            break
    return f"exit {server.process.poll()}"


def rebound(server: Server) -> str:
    """A request for the name that a page of somebody else has pointed here."""
    headers = {"Host": "evil.example"}
    return str(httpx.get(f"{server.url}/v1/models", headers=headers, timeout=20).status_code)


# ---- the table ---------------------------------------------------------------------------------

STOPPED = "exit 0"
_GET = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_POST = b"POST /v1/completions HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\n"
_SMALL = b'{"prompt":"a","max_tokens":1}'
_TWICE = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % ((len(_SMALL),) * 2)
_DEEP = b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b" }"
_LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
_MANY = {"prompt": "a", "n": 128, "max_tokens": 1, "prefix_tokens": [5] * 1900}
_PIECES = {"content": "word and word. " * 60_000, "with_pieces": True}
_LONG = {"padding": "max_length", "max_length": 10_000_000}
_GRAMMAR = {"prompt": "a", "grammar": "start: <|im_end|>"}
_CONTRADICTION = {"prompt": "a", "max_tokens": 8, "choice": ["yes"], "banned": ["yes"]}

CASES = (
    Case("a chat template of nested loops", ("400",), templated(chat_template=_LOOPS)),
    Case(
        "a chat template of half a gigabyte",
        ("400",),
        templated(chat_template="{{ 'a' * 500000000 }}"),
    ),
    Case("a chat padded to 10,000,000 tokens", ("400",), templated(**_LONG)),
    Case("a schema of 6,000 optional properties", ("200", "400"), schema_of(6000)),
    Case("choice and banned are the same", ("400",), sending(COMPLETION, _CONTRADICTION)),
    Case("a grammar that wants a control token", ("400",), sending(COMPLETION, _GRAMMAR)),
    Case("128 answers to 1,900 prefix tokens", ("prompt",), holding_up(COMPLETION, _MANY)),
    Case("/tokenize with pieces of 900 kB", ("prompt",), holding_up("/tokenize", _PIECES)),
    Case(
        "JSON nested 50,000 deep",
        ("400",),
        speaking(_POST + b"Content-Length: %d\r\n\r\n" % len(_DEEP) + _DEEP),
    ),
    Case(
        "Content-Length together with Transfer-Encoding",
        ("400, closed",),
        speaking(_POST + _TWICE + _SMALL + b"\r\n0\r\n\r\n"),
    ),
    Case("HEAD", ("200, kept, no body",), speaking(b"HEAD /health HTTP/1.1\r\nHost: HOST\r\n\r\n")),
    Case("headers of a byte a second", ("cut",), dawdling(_POST[:-2] + b"\r\nX: " + b"a" * 4000)),
    Case(
        "a body of a byte a second",
        ("cut",),
        dawdling(b" " * 4000, _POST + b"Content-Length: 4000\r\n\r\n"),
    ),
    Case("1,100 connections inside a second request", ("200",), tricklers),
    Case("256 descriptors and 600 connections", ("200, little",), flooded, (), 256),
    Case("signals again while it stops", (STOPPED,), stopped_twice, ()),
    Case("rebinding of 0.0.0.0 without a key", ("4",), rebound, ("--host", "0.0.0.0")),
)
