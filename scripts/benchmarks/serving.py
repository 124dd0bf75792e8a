"""The server against ``mlx_lm.server``: requests a second, first tokens, and bad requests.

Owns the two server processes and their clients. Must never know either server's inside.
Invariant: both serve the same model files, get the same requests in turn, and answer as many
tokens; a server that died is started again and counted.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import mlxgen

from .alternate import Comparison, Spread, compare

START, ANSWER = 90.0, 12.0  # seconds that a server may take to be ready, and to answer
TOKENS = 32
LONG = 256  # tokens of an answer whose single ones are measured
RESETS = 1000

MIXED: list[dict[str, Any]] = [
    {"temperature": 0.5 + 0.05 * i, "top_p": 0.8 + 0.01 * i, "top_k": 20 + 5 * i} for i in range(16)
]

BAD: dict[str, bytes | dict[str, Any]] = {
    "prompt: a list of strings": {"prompt": ["a", "b"], "max_tokens": 2},
    "stop: a number": {"prompt": "a", "stop": 5, "max_tokens": 2},
    "top_k over the vocabulary": {"prompt": "a", "top_k": 10**7, "temperature": 1, "max_tokens": 2},
    "logit_bias out of range": {"prompt": "a", "logit_bias": {"999999999": 1}, "max_tokens": 2},
    "xtc_threshold 0.9": {
        "prompt": "a",
        "xtc_threshold": 0.9,
        "xtc_probability": 1.0,
        "temperature": 1,
        "max_tokens": 2,
    },
    "a negative seed": {"prompt": "a", "seed": -1, "temperature": 1, "max_tokens": 2},
    "a huge seed": {"prompt": "a", "seed": 10**30, "temperature": 1, "max_tokens": 2},
    "an empty prompt": {"prompt": "", "max_tokens": 2},
    "an unknown field": {"prompt": "a", "max_tokens": 2, "no_such_field": 1},
    "stream_options without fields": {
        "prompt": "a",
        "max_tokens": 2,
        "stream": True,
        "stream_options": {},
    },
    "not JSON": b"{",
    "a body of 10 MB": b'{"prompt": "' + b"a" * 10_000_000 + b'", "max_tokens": 2}',
    "deeply nested JSON": b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "a lone surrogate": b'{"prompt": "\\ud800", "max_tokens": 2}',
}


@dataclass
class Server:
    """One server process on a free port, started with these arguments."""

    name: Literal["mlxgen", "mlx_lm"]
    arguments: Sequence[str] = ()
    port: int = 0
    resets: int = 0  # connections of good requests that it did not take
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        level = "error" if self.name == "mlxgen" else "ERROR"
        command = [sys.executable, "-m", f"{self.name}.server", "--port", str(self.port)]
        command += ["--log-level", level, *self.arguments]
        with Path(tempfile.gettempdir(), f"bench-{self.name}.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + START
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.name}.server does not start")
            time.sleep(0.2)

    def answers(self) -> bool:
        """Whether a small request is answered in time."""
        with contextlib.suppress(OSError, HTTPException):
            status, _, _ = self.ask({"prompt": "Hello", "max_tokens": 1})
            return status == 200
        return False

    def ask(self, body: bytes | dict[str, Any]) -> tuple[int, float, int]:
        """The status of an answer, the seconds to its first event, and its number of events."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=ANSWER)
        try:
            start = time.perf_counter()
            connection.request(
                "POST", "/v1/completions", data, {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            first, events = 0.0, 0
            while line := response.readline():
                if line.startswith(b"data: {"):
                    events += 1
                    first = first or time.perf_counter() - start
            return response.status, first or time.perf_counter() - start, events
        finally:
            connection.close()

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextlib.contextmanager
def both() -> Iterator[tuple[Server, Server]]:
    """Both servers, running."""
    model = resources.files("mlxgen") / "demo" / "model"
    theirs = ("--model", str(model), "--max-tokens", str(TOKENS))
    servers = Server("mlxgen"), Server("mlx_lm", theirs)
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.stop()


def load(server: Server, clients: int, requests: int, *, mixed: bool) -> tuple[float, list[float]]:
    """Seconds in which ``clients`` at a time have all streams, and seconds to first events."""
    firsts: list[float] = []
    waiting = list(range(requests))
    failures: list[BaseException] = []

    def client() -> None:
        while True:
            try:
                number = waiting.pop()
            except IndexError:
                return
            settings = MIXED[number % len(MIXED)] if mixed else {"temperature": 0.7}
            body = {
                "prompt": f"Once upon a time, number {number},",
                "max_tokens": TOKENS,
                "stream": True,
                "seed": number,
                **settings,
            }
            try:
                status, first, events = server.ask(body)
                assert status == 200 and events > 0, (server.name, status, events)
                firsts.append(first)
            except ConnectionError as error:  # more come at once than its backlog holds
                server.resets += 1
                if server.resets > RESETS:
                    failures.append(error)
                    return
                waiting.append(number)
                time.sleep(0.01)
            except (OSError, HTTPException, AssertionError) as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=client) for _ in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    if failures:
        raise RuntimeError(f"{server.name} failed a good request") from failures[0]
    return seconds, firsts


def throughput(
    servers: tuple[Server, Server], clients: int, turns: int, *, mixed: bool
) -> tuple[Comparison, Spread]:
    """Seconds for the same requests, and how many times sooner our first events come."""
    requests = 4 * clients if clients > 1 else 6
    firsts: dict[str, list[float]] = {server.name: [] for server in servers}

    def one(server: Server) -> float:
        seconds, seen = load(server, clients, requests, mixed=mixed)
        firsts[server.name].append(statistics.median(seen))
        return seconds

    ours, theirs = servers
    found = compare(lambda: one(ours), lambda: one(theirs), turns)
    pairs = zip(firsts[theirs.name][1:], firsts[ours.name][1:], strict=True)
    return found, Spread.of([their / our for their, our in pairs])


def cost_of_http(server: Server, turns: int) -> Spread:
    """Microseconds that a streamed token costs beside what it costs in this process."""
    lm = mlxgen.load()
    request = {"prompt": "Once upon a time", "max_tokens": LONG, "ignore_eos": True, "seed": 1}

    def served() -> float:
        start = time.perf_counter()
        status, _, events = server.ask({**request, "stream": True, "temperature": 0})
        assert status == 200 and events > 0, (status, events)
        return time.perf_counter() - start

    def within() -> float:
        start = time.perf_counter()
        for _ in lm.stream("Once upon a time", max_tokens=LONG, ignore_eos=True, seed=1):
            pass
        return time.perf_counter() - start

    served(), within()
    return Spread.of([(served() - within()) / LONG * 1e6 for _ in range(turns)])


def bad_requests(servers: tuple[Server, Server]) -> dict[str, tuple[str, str]]:
    """What each server does with each bad request: its status, ``hung``, ``died`` or ``mute``.

    A server that no longer answers a good request afterwards has died, and is started again.
    """
    table = {}
    for name, body in BAD.items():
        found = []
        for server in servers:
            try:
                status, _, _ = server.ask(body)
                word = str(status)
            except TimeoutError:
                word = "hung"
            except (OSError, HTTPException):
                word = "mute"
            if not server.answers():
                word += ", died"
                server.stop()
                server.start()
            found.append(word)
        table[name] = (found[0], found[1])
    return table
