"""A server under mixed requests for a long time: what it answers, and what it keeps.

Owns the clients, and what they hold against the server. Must never know the server's inside.
Invariant: every answer is held against the statuses that are right for its request, and a probe's
against what it was alone, before anything else ran.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx

from . import hostile
from .figures import Figure, at_most
from .process import DRAFT, Server
from .traffic import Request, any_request, probes

CLIENTS = 12
WARM = 1000  # requests after which nothing may grow
EVERY = 50  # requests between two looks at the memory
ANSWER = 120.0  # seconds
PROBES = 0.3  # of the requests


def figures(requests: int) -> Iterator[Figure]:
    """A server with a draft model under mixed requests, and what it holds afterwards; then one
    under clients that do their worst."""
    with Server("mlxgen", ("--draft", DRAFT, "--cache-bytes", "32MiB")) as server:
        found = soak(server, requests)
        for sample in found.course():
            text = f"{sample.resident / 1e6:.0f} MB, {sample.kv / 1e6:.0f} MB of it KV"
            yield Figure(f"memory after {sample.requests} requests", text)
        rate = found.requests / found.seconds
        what = f"growth after the first {min(WARM, requests // 2)} of {requests} requests"
        growth = (found.growth - 1) * 100
        yield at_most(what, growth, 5, f"{growth:+.1f} %, {rate:.0f} requests a second", " %")
        answers = ", ".join(f"{count} {kind}" for kind, count in sorted(found.answers.items()))
        for what, texts in (
            (f"answers with another status than theirs ({answers})", found.unexpected),
            (f"of {found.probes.total()} probes: other answers than alone", found.differing),
        ):
            text = "none" if not texts else f"{len(texts)}, the first: {texts[0]}"
            yield Figure(what, text, "none", not texts)
        alive = server.answers()
        yield Figure("a good request afterwards", "answered" if alive else "not", "answered", alive)
    yield from hostile.figures()


class Sample(NamedTuple):
    """The server's memory after so many requests, in bytes."""

    requests: int
    resident: int
    kv: int


class Findings:
    """What a soak has found."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()  # by kind and status
        self.probes: Counter[str] = Counter()  # by kind
        self.differing: list[str] = []
        self.unexpected: list[str] = []
        self.samples: list[Sample] = []
        self.seconds = 0.0

    @property
    def requests(self) -> int:
        return self.answers.total()

    def memory(self, after: int) -> int:
        """Resident bytes about ``after`` requests: the median of five looks."""
        near = sorted(self.samples, key=lambda sample: abs(sample.requests - after))[:5]
        return int(statistics.median(sample.resident for sample in near))

    @property
    def growth(self) -> float:
        """Memory at the end over that after the first ``WARM`` requests, or after half of them."""
        return self.memory(self.requests) / self.memory(min(WARM, self.requests // 2))

    def course(self, points: int = 10) -> Iterator[Sample]:
        """A few of the samples, from the first to the last."""
        step = max(1, len(self.samples) // points)
        yield from self.samples[::step]


def soak(server: Server, requests: int, *, clients: int = CLIENTS, seed: int = 0) -> Findings:
    """Send so many requests from so many clients at a time."""
    return asyncio.run(_soak(server, requests, clients, seed))


async def _soak(server: Server, requests: int, clients: int, seed: int) -> Findings:
    found = Findings()
    limits = httpx.Limits(max_connections=2 * clients)
    async with httpx.AsyncClient(base_url=server.url, timeout=ANSWER, limits=limits) as http:
        right = []
        for probe in probes():
            status, text = await _ask(http, probe)
            if status != 200:
                raise RuntimeError(f"a good request is refused: {status} {text[:300]}")
            right.append((probe, text))
        start = time.perf_counter()
        waiting = iter(range(requests))

        async def client() -> None:
            for number in waiting:
                await _one(http, random.Random(f"{seed}:{number}"), right, found)
                if found.requests % EVERY == 0:
                    _look(server, found)

        await asyncio.gather(*(client() for _ in range(clients)))
        found.seconds = time.perf_counter() - start
    _look(server, found)
    return found


def _look(server: Server, found: Findings) -> None:
    kv = server.figures()
    held = kv.get("mlxgen_kv_bytes", 0) + kv.get("mlxgen_prefix_cache_bytes", 0)
    found.samples.append(Sample(found.requests, server.memory(), int(held)))


async def _one(
    http: httpx.AsyncClient,
    dice: random.Random,
    right: list[tuple[Request, str]],
    found: Findings,
) -> None:
    expected = None
    if dice.random() < PROBES:
        request, expected = dice.choice(right)
        if dice.random() < 0.5 and isinstance(request.body, dict):
            request = request._replace(body={**request.body, "stream": True})
    else:
        request = any_request(dice)
    try:
        status, text = await _ask(http, request)
    except httpx.HTTPError as error:
        status, text = 0, repr(error)
    found.answers[f"{request.kind} {status}"] += 1
    what = f"{request.kind} {request.path} {str(request.body)[:300]}"
    if status not in request.statuses:
        found.unexpected.append(f"{status} {text[:200]} for {what}")
    elif expected is not None:
        found.probes[request.kind] += 1
        if text != expected:
            found.differing.append(f"{text[:200]} instead of {expected[:200]} for {what}")


async def _ask(http: httpx.AsyncClient, request: Request) -> tuple[int, str]:
    """The status, and what is said: the choices as JSON, or an error's body."""
    data = request.body if isinstance(request.body, bytes) else json.dumps(request.body).encode()
    headers = {"Content-Type": "application/json"}
    async with http.stream("POST", request.path, content=data, headers=headers) as response:
        if not response.headers["content-type"].startswith("text/event-stream"):
            body = await response.aread()
            if response.status_code == 200 and request.path.startswith("/v1"):
                return 200, _said(json.loads(body)["choices"])
            return response.status_code, body.decode(errors="replace")
        events: list[Any] = []
        async for line in response.aiter_lines():
            if request.leaves_after is not None and len(events) >= request.leaves_after:
                return response.status_code, ""
            if line.startswith("data: {"):
                events.append(json.loads(line[6:]))
        errors = [event for event in events if "error" in event]
        if errors:
            return errors[0]["error"].get("code") or 500, json.dumps(errors[0])
        return response.status_code, _said([c for event in events for c in event["choices"]])


def _said(choices: list[Any]) -> str:
    """Text, calls and end of each choice, whole or put together from chunks."""
    said: dict[int, dict[str, str]] = {}
    for choice in choices:
        part = said.setdefault(choice["index"], {})
        message = choice.get("message") or choice.get("delta") or {}
        for name, text in (
            ("text", choice.get("text") or message.get("content")),
            ("reasoning", message.get("reasoning_content") or message.get("reasoning")),
            ("end", choice.get("finish_reason")),
        ):
            part[name] = part.get(name, "") + (text or "")
        for call in message.get("tool_calls") or ():
            for name in ("name", "arguments"):
                part[name] = part.get(name, "") + (call["function"].get(name) or "")
    return json.dumps([said[index] for index in sorted(said)])
