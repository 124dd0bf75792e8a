"""A server under mixed requests for a long time: what it answers, and what it keeps.

Every answer is held against the statuses that are right for its request, and a probe's against what
it was alone, before anything else ran. The same dice make the same requests.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import httpx

from . import hostile
from .kit import DRAFT, Figure, Server, at_most

CLIENTS = 12
WARM = 1000  # requests after which nothing may grow
EVERY = 50  # requests between two looks at the memory
ANSWER = 120.0  # seconds
PROBES = 0.3  # of the requests


def figures(requests: int) -> Iterator[Figure]:
    """A server with a draft model under mixed requests, and what it holds afterwards; then one
    under clients that do their worst."""
    with Server("mlxgen", ("--draft", DRAFT, "--cache-bytes", "32MiB")) as server:
        found = asyncio.run(soak(server, requests))
        for sample in found.samples[:: max(1, len(found.samples) // 10)]:
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

    @property
    def growth(self) -> float:
        """Memory at the end over that after the first ``WARM`` requests, or after half of them."""
        return self._memory(self.requests) / self._memory(min(WARM, self.requests // 2))

    def _memory(self, after: int) -> int:
        """Resident bytes about ``after`` requests: the median of five looks."""
        near = sorted(self.samples, key=lambda sample: abs(sample.requests - after))[:5]
        return int(statistics.median(sample.resident for sample in near))

    def look(self, server: Server) -> None:
        kv = server.figures()
        held = kv.get("mlxgen_kv_bytes", 0) + kv.get("mlxgen_prefix_cache_bytes", 0)
        self.samples.append(Sample(self.requests, server.memory(), int(held)))


async def soak(server: Server, requests: int, clients: int = CLIENTS, seed: int = 0) -> Findings:
    """Send so many requests from so many clients at a time."""
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


# ---- what is asked -----------------------------------------------------------------------------

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
CITIES = ["Oslo", "Rome", "Cairo", "Lima", "Seoul", "Accra", "Quito", "Dublin"]
STARTS = ["Once upon a time", "The red fox", "In a small house", "On Monday", "A boat"]
Body = dict[str, Any]
_KIND: Body = {"city": {"enum": ["Paris", "Rome"]}}
_PARAMETERS: Body = {"type": "object", "properties": _KIND, "required": ["city"]}
TOOL: Body = {"type": "function", "function": {"name": "weather", "parameters": _PARAMETERS}}


class Request(NamedTuple):
    """One request. ``statuses``: those that are right. ``leaves_after``: chunks to read of it."""

    kind: str
    path: str
    body: Body | bytes
    statuses: tuple[int, ...] = (200,)
    leaves_after: int | None = None


def probes() -> list[Request]:
    """Requests whose answer is the same at any time, by any of the ways that steer it."""
    greedy: Body = {"temperature": 0, "max_tokens": 24}
    seeded: Body = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 16, "seed": 7}
    ask = [{"role": "user", "content": "What is the capital of France?"}]
    story = [{"role": "user", "content": "Tell me a story about a fox."}]
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    chat: Body = {"messages": ask, "chat_template_kwargs": {"enable_thinking": False}}
    return [
        Request("greedy", COMPLETION, {"prompt": "Once upon a time", **greedy}),
        Request("greedy", COMPLETION, {"prompt": ["The red fox", "A boat"], **greedy}),
        Request("greedy", CHAT, {**chat, **greedy}),
        Request("greedy", CHAT, {"messages": story, **greedy, "max_tokens": 60}),
        Request("schema", CHAT, {**chat, **greedy, "response_format": schema_format(city)}),
        Request("regex", COMPLETION, {"prompt": "Name:", "regex": "[A-Z][a-z]{2,8}", **greedy}),
        Request("ban", CHAT, {"messages": story, **greedy, "banned": ["fox", " the"]}),
        Request("stop", COMPLETION, {"prompt": "Once", **greedy, "stop": [".", "was"]}),
        Request("tools", CHAT, {**chat, **greedy, "tools": [TOOL], "tool_choice": "required"}),
        Request("seeded", COMPLETION, {"prompt": "Once upon a time", **seeded}),
        Request("seeded", COMPLETION, {"prompt": "On Monday", **seeded, "n": 3, "top_k": 20}),
        Request("seeded", CHAT, {**chat, **seeded, "frequency_penalty": 0.5}),
    ]


def schema_format(schema: Body) -> Body:
    """A schema as OpenAI's clients send it."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def any_request(dice: random.Random) -> Request:
    """A request of any kind: most are right, some are wrong, some clients leave."""
    make = dice.choices([_steered, _sampled, _left, _wrong], [5, 4, 1, 1])[0]
    return make(dice)


def _sampled(dice: random.Random) -> Request:
    body: Body = {
        "prompt": f"{dice.choice(STARTS)}, {dice.choice(CITIES)}" * dice.choice([1, 1, 1, 12]),
        "max_tokens": dice.choice([4, 12, 24, 48]),
        "temperature": dice.choice([0, 0.3, 0.7, 1.0, 1.4]),
    }
    options: Mapping[str, Callable[[], Any]] = {
        "top_p": lambda: dice.choice([0.5, 0.9, 0.99]),
        "top_k": lambda: dice.choice([1, 20, 200]),
        "min_p": lambda: dice.choice([0.01, 0.1]),
        "xtc_probability": lambda: 0.5,
        "frequency_penalty": lambda: dice.choice([0.2, 1.0]),
        "repetition_penalty": lambda: 1.1,
        "logit_bias": lambda: {
            str(dice.randrange(400)): 2.5 for _ in range(dice.choice([1, 5, 40]))
        },
        "seed": lambda: dice.randrange(1 << 62),
        "n": lambda: dice.randrange(1, 5),
        "logprobs": lambda: dice.randrange(0, 6),
        "stop": lambda: dice.choice([".", ["a", "the"], [" and", "\n", "!"]]),
        "banned": lambda: dice.choices(["the", "fox", "and", "was", "a b"], k=2),
        "stream": lambda: True,
        "ignore_eos": lambda: True,
        "min_tokens": lambda: 2,
    }
    for name in dice.sample(sorted(options), dice.randrange(5)):
        body[name] = options[name]()
    return Request("sampled", COMPLETION, body)


def _steered(dice: random.Random) -> Request:
    words = "".join(dice.choices("abcdefgh", k=4))
    text, whole = {"type": "string", "maxLength": 12}, {"type": "integer"}
    properties = {"kind": {"enum": dice.sample(CITIES, 3)}, words: text, f"{words}x": whole}
    schema: Body = {"type": "object", "properties": properties, "required": ["kind"]}
    ways: list[Body] = [
        {"response_format": schema_format({**schema, "additionalProperties": False})},
        {"json_schema": {**schema, "additionalProperties": False}, "close_json": True},
        {"response_format": {"type": "json_object"}, "n": 2},
        {"tools": [TOOL], "tool_choice": dice.choice(["auto", "required"])},
        {"regex": dice.choice(["[a-z]{3,9}", f"{words}[0-9]+ (yes|no)"])},
        {"choice": dice.sample(CITIES, 4), "logprobs": True, "top_logprobs": 3},
        {"grammar": f'start: "{words}" /[0-9]/ | "no"'},
    ]
    asked = f"JSON, record: {dice.choice(CITIES)} {words}."
    body: Body = {
        "messages": [{"role": "user", "content": asked}],
        "max_tokens": dice.choice([8, 30, 60]),
        "temperature": dice.choice([0, 0.8]),
        "chat_template_kwargs": {"enable_thinking": dice.random() < 0.3},
        "stream": dice.random() < 0.5,
        **dice.choice(ways),
    }
    return Request("steered", CHAT, body)


def _left(dice: random.Random) -> Request:
    request = dice.choice([_sampled, _steered])(dice)
    assert isinstance(request.body, dict)
    body = {**request.body, "stream": True, "max_tokens": 200}
    if dice.random() < 0.5 and request.path == COMPLETION:
        body |= {"ignore_eos": True, "max_tokens": 2000}
    return request._replace(kind="left", body=body, leaves_after=dice.choice([0, 1, 3, 10]))


_WRONG: list[tuple[str, Body | bytes]] = [
    (COMPLETION, {"prompt": ""}),
    (COMPLETION, {"prompt": "a", "stop": 5}),
    (COMPLETION, {"prompt": "a", "logit_bias": {"999999999": 1}}),
    (COMPLETION, {"prompt": "a", "n": 1000}),
    (COMPLETION, {"prompt": "a", "regex": "(a{1000}){1000}"}),
    (COMPLETION, {"prompt": "a", "json_schema": {"type": "nothing"}}),
    (COMPLETION, {"prompt": "a", "grammar": "start: missing"}),
    (COMPLETION, b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    (COMPLETION, b'{"prompt": "\\ud800", "max_tokens": 2}'),
    (COMPLETION, {"prompt": "a" * 200_000}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"}),
    ("/detokenize", {"tokens": [1 << 40]}),
]


def _wrong(dice: random.Random) -> Request:
    path, body = dice.choice(_WRONG)
    return Request("wrong", path, body, statuses=(400,))
