"""The server against ``mlx_lm.server``: requests per second and first tokens.

Both serve the same model files, get the same requests in turn, and answer with the same number of
tokens. A server that died is started again, and the row says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any

from . import kit
from .servers import Server

TOKENS = 32
PATIENCE = 60.0  # seconds in which a refused connection is tried again
ALIKE = [{"temperature": 0.7}]
LOADS = (
    (1, "the same sampler", 1.0, ALIKE),
    (4, "the same sampler", 2.3, ALIKE),
    (16, "the same sampler", 3.7, ALIKE),
    (16, "16 different samplers", 1.3, kit.SAMPLERS),
)
"""Clients, their samplers, and the target of requests per second over mlx-lm's."""


def figures(turns: int) -> Iterator[kit.Figure]:
    theirs = ("--model", str(kit.DEMO), "--max-tokens", str(TOKENS))
    with Server("mlxgen") as ours, Server("mlx_lm", theirs) as other:
        for clients, kind, target, samplers in LOADS:
            what = f"{clients} clients, {kind}: requests per second over mlx_lm.server's"
            found = compared(what, (ours, other), clients, samplers, target, max(2, turns // 2))
            yield from kit.guarded(what, found)
            for server in (ours, other):
                if not server.answers():
                    server.stop()
                    server.start()


def compared(
    what: str, both: tuple[Server, Server], clients: int, samplers: Any, target: float, turns: int
) -> Iterator[kit.Figure]:
    """Requests per second over theirs, and how many times sooner our first events come."""
    firsts: tuple[list[float], list[float]] = [], []
    bodies = [
        {
            "prompt": f"Once upon a time, number {number},",
            "max_tokens": TOKENS,
            "stream": True,
            "seed": number,
            **samplers[number % len(samplers)],
        }
        for number in range(4 * clients if clients > 1 else 6)
    ]

    def run(side: int) -> None:
        with ThreadPoolExecutor(clients) as pool:
            seen = list(pool.map(lambda body: first_event(both[side], body), bodies))
        firsts[side].append(statistics.median(seen))

    found = kit.compare(lambda: run(0), lambda: run(1), turns)
    yield kit.at_least(what, found.ratio, target)
    ratios = [their / our for our, their in zip(*firsts, strict=True)]
    yield kit.plain(f"{what}: their time to first token over ours", kit.Spread.of(ratios[1:]))


def first_event(server: Server, body: dict[str, Any]) -> float:
    """Seconds to the first event of a good request."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            answer = server.ask(body)
        except ConnectionError:  # more clients at once than the server's backlog holds
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        except (OSError, HTTPException) as error:
            raise RuntimeError(f"{server.name} failed a good request: {error!r}") from error
        else:
            assert answer.status == 200 and answer.events, (server.name, answer)
            return answer.first
