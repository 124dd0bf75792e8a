"""A server under mixed requests for a long time, and next to clients with very large requests.

Every answer's status is compared with the right one for its request, and a probe's answer with the
one that it got alone, before anything else ran. The requests are in ``soak.json``; the same seeds
make the same requests.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, NamedTuple

from . import kit, servers
from .architectures import read
from .servers import Server

CLIENTS = 12
WARM = 1000  # requests after which nothing may grow
EVERY = 50  # requests between two measurements of the memory
ANSWER = 120.0  # seconds
PROBES = 0.3  # of the requests
FEW_HEAPS = {"MALLOC_ARENA_MAX": "2"}  # else glibc keeps free memory per thread


def figures(requests: int) -> Iterator[kit.Figure]:
    with Server("mlxgen", ("--draft", kit.DRAFT, "--cache-bytes", "32MiB"), FEW_HEAPS) as server:
        found = soak(server, requests)
        what = (
            f"percent of growth after the first {min(WARM, requests // 2)} of {requests} requests"
        )
        text = f"{found.growth:+.1f}, from {found.told}; {requests / found.seconds:.0f} requests/s"
        yield kit.at_most(what, found.growth, 5, text)
        answers = ", ".join(f"{count} {kind}" for kind, count in sorted(found.answers.items()))
        for what, texts in (
            (f"answers with another status than theirs ({answers})", found.unexpected),
            (f"of {found.probes} probes: other answers than alone", found.differing),
            ("a good request afterwards", [] if server.answers() else ["not answered"]),
        ):
            text = "none wrong" if not texts else f"{len(texts)}, the first: {texts[0]}"
            yield kit.Figure(what, text, "none wrong", not texts)
    for name, (path, body) in LARGE.items():
        with Server("mlxgen") as server:
            what = f"{name}: seconds for which a small request waits at the longest"
            yield kit.at_most(what, held_up(server, path, body), HELD_UP)


# ---- the requests ------------------------------------------------------------------------------

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
ASKED = read("soak")
INSTEAD = {
    '"LONG"': f'"{"a" * 200_000}"',
    '"DEEP"': "[" * 50_000 + "]" * 50_000,
    '"WORDS"': f'"{"word and word. " * 60_000}"',
    '"MANY"': str([5] * 1900),
}


class Request(NamedTuple):
    """One request. ``leaves_after``: the client hangs up after this number of events."""

    kind: str
    path: str
    body: dict[str, Any]
    status: int = 200
    leaves_after: int | None = None

    def told(self, server: Server) -> tuple[int, str]:
        """The status of its answer, and the content: the choices as JSON, or an error."""
        data = json.dumps(self.body)
        for word, large in INSTEAD.items():
            data = data.replace(word, large)
        try:
            asked = server.ask(data, self.path, timeout=ANSWER, leaves_after=self.leaves_after)
        except (OSError, HTTPException) as error:
            return 0, repr(error)
        if any("error" in event for event in asked.events):  # perhaps in the middle of a stream
            return max(asked.status, 400), json.dumps(asked.events[-1])
        messages, ends, _ = servers.folded(asked.events)
        for call in (call for message in messages for call in message["tool_calls"]):
            del call["id"]
        return asked.status, json.dumps([messages, ends])


def any_request(dice: random.Random) -> Request:
    """A request of any kind: most are valid, some are invalid, some clients leave."""
    kind = dice.choices(["steered", "sampled", "left", "wrong"], [5, 4, 1, 1])[0]
    if kind == "wrong":
        path, body = dice.choice(ASKED["wrong"])
        return Request(kind, path, body, 400)
    if kind == "steered" or (kind == "left" and dice.random() < 0.5):
        path, body = CHAT, dice.choice(ASKED["steered"])
        ask = [{"role": "user", "content": "JSON, record: Oslo WORD."}]
        template = {"enable_thinking": dice.random() < 0.3}
        body = {**body, "messages": ask, "max_tokens": 30, "chat_template_kwargs": template}
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


@dataclass(slots=True)
class Findings:
    """The results of a soak."""

    answers: Counter[str] = field(default_factory=Counter)  # by kind and status
    probes: int = 0
    differing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)  # resident bytes, after each ``EVERY`` requests
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        return self.answers.total()

    def median_at(self, requests: int) -> float:
        """The memory after this number of requests: the median of the five nearest measurements."""
        middle = max(2, requests // EVERY)
        return statistics.median(self.memory[: middle + 2][-5:])

    @property
    def growth(self) -> float:
        """The growth of memory in percent since the first ``WARM`` requests, or half of all."""
        before = self.median_at(min(WARM, self.requests // 2))
        return 100 * (self.median_at(self.requests) / before - 1)

    @property
    def told(self) -> str:
        return ", ".join(f"{each / 1e6:.0f}" for each in self.memory[:: len(self.memory) // 8 + 1])


def soak(server: Server, requests: int, clients: int = CLIENTS) -> Findings:
    """Send ``requests`` requests from ``clients`` clients at a time."""
    right = []
    for probe in (Request(*each) for each in ASKED["probes"]):
        status, text = probe.told(server)
        if status != 200:
            raise RuntimeError(f"a good request is refused: {status} {text[:300]}")
        right.append((probe, text))

    def one(number: int) -> tuple[Request, str | None, int, str]:
        dice = random.Random(f"0:{number}")
        request, expected = any_request(dice), None
        if dice.random() < PROBES:
            request, expected = dice.choice(right)
            request = request._replace(body={**request.body, "stream": dice.random() < 0.5})
        return request, expected, *request.told(server)

    found, start = Findings(), time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        for request, expected, status, text in pool.map(one, range(requests)):
            found.answers[f"{request.kind} {status}"] += 1
            what = f"{request.kind} {request.path} {str(request.body)[:300]}"
            if status != request.status:
                found.unexpected.append(f"{status} {text[:200]} for {what}")
            elif expected is not None:
                found.probes += 1
                if text != expected:
                    found.differing.append(f"{text[:200]} instead of {expected[:200]} for {what}")
            if found.requests % EVERY == 0:
                found.memory.append(server.memory())
    found.seconds = time.perf_counter() - start
    found.memory.append(server.memory())
    return found


# ---- very large requests -------------------------------------------------------------------------

HELD_UP = 1.5  # seconds
LARGE: dict[str, tuple[str, dict[str, Any]]] = ASKED["large"]


def held_up(server: Server, path: str, body: dict[str, Any]) -> float:
    """The longest time that small requests of others wait while four large ones are sent."""
    small, longest = Request("small", COMPLETION, {"prompt": "Hello", "max_tokens": 1}), 0.0
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(Request("large", path, body).told, server) for _ in range(4)]
        while not all(each.done() for each in sent):
            start = time.perf_counter()
            status, text = small.told(server)
            if status != 200:
                raise RuntimeError(f"a good request is refused: {status} {text[:300]}")
            longest = max(longest, time.perf_counter() - start)
            time.sleep(0.02)
    return longest
