"""A server under mixed requests for a long time, and then under clients that do their worst.

Every answer is held against the statuses that are right for its request, and a probe's against what
it was alone, before anything else ran. What is asked is in ``soak.json``; the same dice make the
same requests. After every hostile case a good request has to be answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import httpx

from . import kit, servers
from .servers import Server

CLIENTS = 12
WARM = 1000  # requests after which nothing may grow
EVERY = 50  # requests between two looks at the memory
ANSWER = 120.0  # seconds
PROBES = 0.3  # of the requests


def figures(requests: int) -> Iterator[kit.Figure]:
    with Server("mlxgen", ("--draft", kit.DRAFT, "--cache-bytes", "32MiB")) as server:
        found = asyncio.run(soak(server, requests))
        for sample in found.samples[:: max(1, len(found.samples) // 10)]:
            text = f"{sample.resident / 1e6:.0f} MB, {sample.kv / 1e6:.0f} MB of it KV"
            yield kit.Figure(f"memory after {sample.requests} requests", text)
        what = (
            f"percent of growth after the first {min(WARM, requests // 2)} of {requests} requests"
        )
        growth, rate = (found.growth - 1) * 100, requests / found.seconds
        yield kit.at_most(what, growth, 5, f"{growth:+.1f}, {rate:.0f} requests a second")
        answers = ", ".join(f"{count} {kind}" for kind, count in sorted(found.answers.items()))
        for what, texts in (
            (f"answers with another status than theirs ({answers})", found.unexpected),
            (f"of {found.probes} probes: other answers than alone", found.differing),
        ):
            text = "none" if not texts else f"{len(texts)}, the first: {texts[0]}"
            yield kit.Figure(what, text, "none", not texts)
        alive = server.answers()
        text = "answered" if alive else "not"
        yield kit.Figure("a good request afterwards", text, "answered", alive)
    for name, case in HOSTILE.items():
        with Server("mlxgen", before=case.before) as server:
            yield hostile(name, server)


# ---- what is asked -----------------------------------------------------------------------------

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
ASKED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
LARGE = {"LONG": f'"{"a" * 200_000}"', "DEEP": "[" * 50_000 + "]" * 50_000}  # instead of words


class Request(NamedTuple):
    """One request. ``leaves_after``: chunks to read of it."""

    kind: str
    path: str
    body: dict[str, Any]
    status: int = 200
    leaves_after: int | None = None


def any_request(dice: random.Random) -> Request:
    """A request of any kind: most are right, some are wrong, some clients leave."""
    kind = dice.choices(["steered", "sampled", "left", "wrong"], [5, 4, 1, 1])[0]
    if kind == "wrong":
        path, body = dice.choice(ASKED["wrong"])
        return Request(kind, path, body, 400)
    if kind == "steered" or (kind == "left" and dice.random() < 0.5):
        path, body = CHAT, dice.choice(ASKED["steered"])
        ask = [{"role": "user", "content": "JSON, record: Oslo WORD."}]
        template = {"enable_thinking": dice.random() < 0.3}
        body |= {"messages": ask, "max_tokens": 30, "chat_template_kwargs": template}
        body |= {"temperature": dice.choice([0, 0.8]), "stream": dice.random() < 0.5}
    else:
        path, options = COMPLETION, ASKED["options"]
        chosen = ["max_tokens", "temperature", *dice.sample(sorted(options), dice.randrange(5))]
        body = {"prompt": dice.choice(ASKED["prompts"])}
        body |= {name: dice.choice(options[name]) for name in chosen}
    word = "".join(dice.choices("abcdefgh", k=4))
    body = json.loads(json.dumps(body).replace("WORD", word))
    if kind != "left":
        return Request(kind, path, body)
    body |= {"stream": True, "max_tokens": 200}
    if path == COMPLETION and dice.random() < 0.5:
        body |= {"ignore_eos": True, "max_tokens": 1500}
    return Request(kind, path, body, leaves_after=dice.choice([0, 1, 3, 10]))


# ---- the soak ----------------------------------------------------------------------------------


class Sample(NamedTuple):
    """The server's memory after so many requests, in bytes."""

    requests: int
    resident: int
    kv: int


@dataclass(slots=True)
class Findings:
    """What a soak has found."""

    answers: Counter[str] = field(default_factory=Counter)  # by kind and status
    probes: int = 0
    differing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        return self.answers.total()

    @property
    def growth(self) -> float:
        """Memory at the end over that after the first ``WARM`` requests, or after half of them: the
        median of the five looks that are nearest."""

        def memory(after: int) -> float:
            near = sorted(self.samples, key=lambda sample: abs(sample.requests - after))[:5]
            return statistics.median(sample.resident for sample in near)

        return memory(self.requests) / memory(min(WARM, self.requests // 2))

    def look(self, server: Server) -> None:
        kv = server.figures()
        held = kv.get("mlxgen_kv_bytes", 0) + kv.get("mlxgen_prefix_cache_bytes", 0)
        self.samples.append(Sample(self.requests, server.memory(), int(held)))


async def soak(server: Server, requests: int, clients: int = CLIENTS) -> Findings:
    """Send so many requests from so many clients at a time."""
    found, right = Findings(), []
    limits = httpx.Limits(max_connections=2 * clients)
    async with httpx.AsyncClient(base_url=server.url, timeout=ANSWER, limits=limits) as http:
        for probe in (Request(*each) for each in ASKED["probes"]):
            status, text = await _ask(http, probe)
            if status != 200:
                raise RuntimeError(f"a good request is refused: {status} {text[:300]}")
            right.append((probe, text))
        start = time.perf_counter()
        waiting = iter(range(requests))

        async def client() -> None:
            for number in waiting:
                await _one(http, random.Random(f"0:{number}"), right, found)
                if found.requests % EVERY == 0:
                    found.look(server)

        await asyncio.gather(*(client() for _ in range(clients)))
        found.seconds = time.perf_counter() - start
    found.look(server)
    return found


async def _one(
    http: httpx.AsyncClient,
    dice: random.Random,
    right: list[tuple[Request, str]],
    found: Findings,
) -> None:
    request, expected = any_request(dice), None
    if dice.random() < PROBES:
        request, expected = dice.choice(right)
        request = request._replace(body={**request.body, "stream": dice.random() < 0.5})
    try:
        status, text = await _ask(http, request)
    except httpx.HTTPError as error:
        status, text = 0, repr(error)
    found.answers[f"{request.kind} {status}"] += 1
    what = f"{request.kind} {request.path} {str(request.body)[:300]}"
    if status != request.status:
        found.unexpected.append(f"{status} {text[:200]} for {what}")
    elif expected is not None:
        found.probes += 1
        if text != expected:
            found.differing.append(f"{text[:200]} instead of {expected[:200]} for {what}")


async def _ask(http: httpx.AsyncClient, request: Request) -> tuple[int, str]:
    """The status, and what is said: the choices as JSON, or an error's body."""
    data = json.dumps(request.body)
    for name, large in LARGE.items():
        data = data.replace(f'"{name}"', large)
    headers = {"Content-Type": "application/json"}
    async with http.stream("POST", request.path, content=data, headers=headers) as response:
        events: list[Any] = []
        if not response.headers["content-type"].startswith("text/event-stream"):
            body = (await response.aread()).decode(errors="replace")
            if response.status_code != 200 or not request.path.startswith("/v1"):
                return response.status_code, body
            events.append(json.loads(body))
        async for line in response.aiter_lines():
            if request.leaves_after is not None and len(events) >= request.leaves_after:
                return response.status_code, ""
            if line.startswith("data: {"):
                events.append(json.loads(line[6:]))
        for event in events:
            if "error" in event:
                return event["error"].get("code") or 500, json.dumps(event)
        said = servers.folded(events)
        for call in (call for message in said.messages for call in message["tool_calls"]):
            del call["id"]
        return response.status_code, json.dumps(said[:2])


# ---- hostile clients ---------------------------------------------------------------------------

Run: TypeAlias = Callable[[Server], str]
PATIENCE = 30.0  # seconds for an answer
HELD_UP = 1.5  # seconds that a client may hold others up
CUT = 150.0  # seconds after which a sender that dawdles has to be gone
TRICKLERS = 1100
FEW, FLOOD = 256, 600  # descriptors of a server, and connections to it
LOG = 200_000  # bytes that a flood may write
_GET = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_POST = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_MANY = {"prompt": "a", "n": 128, "max_tokens": 1, "prefix_tokens": [5] * 1900}
_PIECES = {"content": "word and word. " * 60_000, "with_pieces": True}


class Hostile(NamedTuple):
    """A case: the beginning of what may come of it, and what a shell does before the server."""

    wanted: str
    run: Run
    before: str = ":"


def hostile(name: str, server: Server) -> kit.Figure:
    """What a case does to a server, and whether that answers afterwards."""
    wanted, run, _ = HOSTILE[name]
    try:
        found = run(server)
    except (httpx.HTTPError, OSError) as error:
        found = "hung" if "imeout" in type(error).__name__ else f"mute ({type(error).__name__})"
    if not server.answers():
        found = f"no answer to a good request afterwards; {found}"
    return kit.Figure(name, found, wanted, found.startswith(wanted))


def _status(server: Server) -> int:
    body = {"prompt": "Hello", "max_tokens": 1}
    return httpx.post(server.url + COMPLETION, json=body, timeout=PATIENCE).status_code


def holding_up(path: str, body: Any) -> Run:
    """How long small requests of others wait while four of these are sent, at the longest."""

    def quietly(server: Server) -> None:
        with contextlib.suppress(httpx.HTTPError):
            httpx.post(server.url + path, json=body, timeout=2 * PATIENCE)

    def run(server: Server) -> str:
        threads = [threading.Thread(target=quietly, args=(server,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        longest = 0.0
        while any(thread.is_alive() for thread in threads):
            start = time.perf_counter()
            _status(server)
            longest = max(longest, time.perf_counter() - start)
            time.sleep(0.02)
        return f"{'prompt' if longest <= HELD_UP else 'late'}: {longest:.2f} s at the longest"

    return run


def dawdling(rest: bytes, begun: bytes = b"") -> Run:
    """A second request of a connection that comes a byte a second, after what was ``begun`` at
    once: when the server ends it."""

    def run(server: Server) -> str:
        with socket.create_connection((servers.HOST, server.port), PATIENCE) as link:
            link.sendall(_GET)
            link.recv(65536)
            link.settimeout(1)
            start = time.monotonic()
            with contextlib.suppress(OSError):
                link.sendall(begun)
                for byte in rest:
                    if time.monotonic() - start > CUT:
                        return f"kept for {CUT:.0f} s"
                    link.sendall(bytes([byte]))
                    with contextlib.suppress(TimeoutError):
                        if not link.recv(4096):
                            break
        return f"cut after {time.monotonic() - start:.0f} s"

    return run


def tricklers(server: Server) -> str:
    """Many connections that wait inside their second request, and a good one beside them."""
    with contextlib.ExitStack() as stack:
        made = (
            socket.create_connection((servers.HOST, server.port), PATIENCE)
            for _ in range(TRICKLERS)
        )
        links = [stack.enter_context(link) for link in made]
        for link in links:
            link.sendall(_GET)
        for link in links:
            link.recv(65536)
            link.sendall(b"P")
        return str(_status(server))


def flooded(server: Server) -> str:
    """More connections than there are descriptors; then a good request."""
    with contextlib.ExitStack() as stack:
        for _ in range(FLOOD):
            link = stack.enter_context(socket.socket())
            link.setblocking(False)
            link.connect_ex((servers.HOST, server.port))
        time.sleep(7)
        written = len(server.logged())
    time.sleep(2)
    size = "little" if written < LOG else "much"
    return f"{_status(server)}, {size} written to the log ({written} bytes)"


HOSTILE = {
    "128 answers to 1,900 prefix tokens": Hostile("prompt", holding_up(COMPLETION, _MANY)),
    "/tokenize with pieces of 900 kB": Hostile("prompt", holding_up("/tokenize", _PIECES)),
    "headers of a byte a second": Hostile("cut", dawdling(_POST[:-2] + b"\r\nX: " + b"a" * 4000)),
    "a body of a byte a second": Hostile(
        "cut", dawdling(b" " * 4000, _POST + b"Content-Length: 4000\r\n\r\n")
    ),
    f"{TRICKLERS:,} connections inside a second request": Hostile("200", tricklers),
    f"{FEW} descriptors and {FLOOD} connections": Hostile(
        "200, little", flooded, f"ulimit -n {FEW}"
    ),
}
