"""The server against ``mlx_lm.server``: requests a second, first tokens, and bad requests.

Both serve the same model files, get the same requests in turn, and answer as many tokens. A server
that died is started again, and the row says so.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator
from http.client import HTTPException
from importlib import resources
from typing import Any, TypeAlias

import mlxgen

from .alternate import Comparison, Spread, compare
from .figures import Figure, at_least, guarded
from .process import Server

TOKENS = 32
LONG = 256  # tokens of an answer whose single ones are measured
RESETS = 1000
MIXED: list[dict[str, Any]] = [
    {"temperature": 0.5 + 0.05 * i, "top_p": 0.8 + 0.01 * i, "top_k": 20 + 5 * i} for i in range(16)
]
_XTC = {"xtc_threshold": 0.9, "xtc_probability": 1.0, "temperature": 1}
BAD: dict[str, bytes | dict[str, Any]] = {
    "prompt: a list of strings": {"prompt": ["a", "b"], "max_tokens": 2},
    "stop: a number": {"prompt": "a", "stop": 5, "max_tokens": 2},
    "top_k over the vocabulary": {"prompt": "a", "top_k": 10**7, "temperature": 1, "max_tokens": 2},
    "logit_bias out of range": {"prompt": "a", "logit_bias": {"999999999": 1}, "max_tokens": 2},
    "xtc_threshold 0.9": {"prompt": "a", "max_tokens": 2, **_XTC},
    "a negative seed": {"prompt": "a", "seed": -1, "temperature": 1, "max_tokens": 2},
    "a huge seed": {"prompt": "a", "seed": 10**30, "temperature": 1, "max_tokens": 2},
    "an empty prompt": {"prompt": "", "max_tokens": 2},
    "an unknown field": {"prompt": "a", "max_tokens": 2, "no_such_field": 1},
    "not JSON": b"{",
    "a body of 10 MB": b'{"prompt": "' + b"a" * 10_000_000 + b'", "max_tokens": 2}',
    "deeply nested JSON": b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "a lone surrogate": b'{"prompt": "\\ud800", "max_tokens": 2}',
}

LOADS = ((1, 1.0, False), (4, 2.3, False), (16, 3.7, False), (16, 1.3, True))
"""Clients, the requests a second over mlx-lm's that are wanted, and whether samplers differ."""

Servers: TypeAlias = tuple[Server, Server]


def figures(turns: int) -> Iterator[Figure]:
    turns = max(2, turns // 2)
    with both() as servers:
        for clients, target, mixed in LOADS:
            kind = "16 different samplers" if mixed else "the same sampler"
            what = f"{clients} clients, {kind}: requests per second over mlx_lm.server's"
            yield from guarded(what, _served(what, servers, clients, turns, target, mixed))
        what = "1 client: cost of the HTTP layer a streamed token, in µs"
        yield from guarded(what, _cost(what, servers[0], turns))
        ours, theirs = (str(server.resets) for server in servers)
        yield Figure("connections of good requests that were reset", f"{ours}; mlx_lm's: {theirs}")
        for name, body in BAD.items():
            ours, theirs = (bad_request(server, body) for server in servers)
            good = ours[0] in "24" and "died" not in ours
            yield Figure(name, f"{ours}; mlx_lm.server: {theirs}", "answered, and lives", good)


def _served(
    what: str, servers: Servers, clients: int, turns: int, target: float, mixed: bool
) -> Iterator[Figure]:
    found, first = throughput(servers, clients, turns, mixed=mixed)
    yield at_least(what, found.ratio.median, target, found.ratio)
    yield Figure(f"{what}: their time to first token over ours", str(first), value=first.median)


def _cost(what: str, server: Server, turns: int) -> Iterator[Figure]:
    cost = cost_of_http(server, turns)
    yield Figure(what, f"{cost.median:.0f} ({cost.low:.0f} to {cost.high:.0f})", value=cost.median)


@contextlib.contextmanager
def both() -> Iterator[Servers]:
    """Both servers, running."""
    model = resources.files("mlxgen") / "demo" / "model"
    theirs = ("--model", str(model), "--max-tokens", str(TOKENS))
    with Server("mlxgen") as ours, Server("mlx_lm", theirs) as other:
        yield ours, other


def load(server: Server, clients: int, requests: int, *, mixed: bool) -> tuple[float, list[float]]:
    """Seconds in which ``clients`` at a time have all streams, and seconds to first events."""
    firsts: list[float] = []
    waiting = list(range(requests))
    failures: list[BaseException] = []

    def client() -> None:
        while not failures:
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
                waiting.append(number)
                time.sleep(0.01)
            except (OSError, HTTPException, AssertionError) as error:
                failures.append(error)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    if failures:
        if not server.answers():
            server.stop()
            server.start()
        raise RuntimeError(f"{server.name} failed a good request: {failures[0]!r}")
    return seconds, firsts


def throughput(
    servers: Servers, clients: int, turns: int, *, mixed: bool
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


def bad_request(server: Server, body: bytes | dict[str, Any]) -> str:
    """What a server does with a bad request: its status, ``hung`` or ``mute``, and ``died`` if it
    does not answer a good request afterwards; then it is started again."""
    try:
        word = str(server.ask(body)[0])
    except TimeoutError:
        word = "hung"
    except (OSError, HTTPException):
        word = "mute"
    if not server.answers():
        word += ", died"
        server.stop()
        server.start()
    return word
