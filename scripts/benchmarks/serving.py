"""The server against ``mlx_lm.server``: requests a second and first tokens.

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
from typing import Any, TypeAlias

from .kit import DEMO, Comparison, Figure, Server, Spread, at_least, compare, guarded

TOKENS = 32
RESETS = 1000
MIXED: list[dict[str, Any]] = [
    {"temperature": 0.5 + 0.05 * i, "top_p": 0.8 + 0.01 * i, "top_k": 20 + 5 * i} for i in range(16)
]
LOADS = ((1, 1.0, False), (4, 2.3, False), (16, 3.7, False), (16, 1.3, True))
"""Clients, the requests a second over mlx-lm's that are wanted, and whether samplers differ."""

Servers: TypeAlias = tuple[Server, Server]


def figures(turns: int) -> Iterator[Figure]:
    turns = max(2, turns // 2)
    theirs = ("--model", str(DEMO), "--max-tokens", str(TOKENS))
    with Server("mlxgen") as ours, Server("mlx_lm", theirs) as other:
        for clients, target, mixed in LOADS:
            kind = "16 different samplers" if mixed else "the same sampler"
            what = f"{clients} clients, {kind}: requests per second over mlx_lm.server's"
            yield from guarded(what, _served(what, (ours, other), clients, turns, target, mixed))
        what = "connections of good requests that were reset"
        yield Figure(what, f"{ours.resets}; mlx_lm's: {other.resets}")


def _served(
    what: str, servers: Servers, clients: int, turns: int, target: float, mixed: bool
) -> Iterator[Figure]:
    found, first = throughput(servers, clients, turns, mixed=mixed)
    yield at_least(what, found.ratio.median, target, found.ratio)
    yield Figure(f"{what}: their time to first token over ours", str(first), value=first.median)


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
            body = {
                "prompt": f"Once upon a time, number {number},",
                "max_tokens": TOKENS,
                "stream": True,
                "seed": number,
                **(MIXED[number % len(MIXED)] if mixed else {"temperature": 0.7}),
            }
            try:
                answer = server.ask(body)
                assert answer.status == 200 and answer.events, (server.name, answer)
                firsts.append(answer.first)
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
        with contextlib.suppress(RuntimeError):
            if not server.answers():
                server.stop()
                server.start()
        raise RuntimeError(f"{server.name} failed a good request: {failures[0]!r}")
    return seconds, firsts
