"""Bodies that are meant to hurt: each is answered in time, and others are served meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from .apis import CHAT
from .exchanges import fits, outcome
from .running import WAIT, Running, endless, events, question

IN_TIME = 30.0  # seconds; one or two on a machine that does nothing else
ANY = {"http": "~200|400"}


def refused(param: str | None = None, status: int = 400) -> dict[str, Any]:
    return {"http": status, "error": {"message": "~.", **({"param": param} if param else {})}}


def form(schema: Any) -> dict[str, Any]:
    return question(max_tokens=8, **CHAT.form(schema))


def grammar(names: str, end: str, count: int) -> dict[str, Any]:
    """Rules each of which is the next one."""
    links = [f"{names}{i}: {names}{i + 1}" for i in range(count)]
    text = "\n".join([f"start: {names}0", *links, f"{names}{count}: {end}"])
    return question(max_tokens=8, grammar=text)


def properties(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {} for i in range(count)}}


def nested(depth: int, field: str) -> Any:
    schema: Any = {}
    for _ in range(depth):
        schema = {field: {"a": schema} if field == "properties" else schema}
    return schema


def choices(count: int, ways: int) -> dict[str, Any]:
    """A schema whose alternatives multiply."""
    each = [[{"properties": {f"a{i}{j}": {"const": j}}} for j in range(ways)] for i in range(count)]
    return {"allOf": [{"anyOf": alternatives} for alternatives in each]}


BODIES: Mapping[str, tuple[Any, Any]] = {
    "nesting in vain": ("[" * 500_000, refused()),
    "deep messages": ('{"messages":' * 60_000 + "1" + "}" * 60_000, refused()),
    "ten megabytes": ('{"messages": "' + "x" * 10_000_000 + '"}', refused(status=413)),
    "100,000 stops": (question(stop=["x"] * 100_000), refused("stop")),
    "a prompt longer than the context": (question("word " * 20_000), refused("messages")),
    "an expression that explodes": (question(regex="(?:a?){2000}a{2000}"), refused("regex")),
    "1,000 properties": (form(properties(1000)), ANY),
    "9,000 properties": (form(properties(9000)), refused("response_format")),
    "nested 100 deep": (form(nested(100, "items")), ANY),
    "nested 250 deep": (form(nested(250, "properties")), refused()),
    "nested 500 deep": (form(nested(500, "items")), refused()),
    "alternatives that multiply": (form(choices(8, 4)), ANY),
    "a large modulus": (form({"type": "integer", "multipleOf": 999_983}), ANY),
    "50,000 strings": (form({"enum": [f"v{i}" for i in range(50_000)]}), ANY),
    "long repetitions": (question(max_tokens=8, regex="(a{1,5000}){1,5000}"), ANY),
    "quantifiers in quantifiers": (question(max_tokens=8, regex="((a+)+)+b"), ANY),
    "an automaton that doubles": (question(max_tokens=8, regex="(a|b)*a(a|b){30}"), ANY),
    "5,000 brackets": (question(max_tokens=8, regex="(" * 5000 + "a" + ")" * 5000), ANY),
    "900 rules in a chain": (grammar("r", '"a"', 900), ANY),
    "900 rules in a chain with a fault": (grammar("r", "nobody", 900), refused("grammar")),
    "900 tokens in a chain with a fault": (grammar("T", '"a" /(/', 900), refused("grammar")),
    "20,000 rules in a chain": (grammar("r", '"a"', 20_000), ANY),
    "any number of ways": (question(max_tokens=8, grammar='start: a\na: a a | "x" | a a a'), ANY),
    "recursion to the left": (
        question(max_tokens=8, grammar='start: start start | start "a" | "b"'),
        ANY,
    ),
}
"""Each with what comes back."""
HEAVY = ("9,000 properties", *[name for name in BODIES if "fault" in name])


@pytest.fixture(scope="module")
def healthy(server: Running) -> Iterator[list[float]]:
    """A stream that goes on meanwhile, again and again; the times of its events."""
    times: list[float] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            with server.stream("/v1/completions", endless(max_tokens=400)) as lines:
                for _ in events(lines):
                    times.append(time.monotonic())
                    if over.is_set():
                        return

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        server.wait_until(lambda: bool(times), "no healthy stream")
        yield times
        over.set()
        reader.result(WAIT)


def sent(server: Running, name: str) -> httpx.Response:
    body, _ = BODIES[name]
    return server.send_text(CHAT.path, body if isinstance(body, str) else json.dumps(body), {})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in HEAVY else ()) for name in BODIES]
)
def test_each_is_answered_in_time_and_a_healthy_stream_goes_on(
    server: Running, healthy: list[float], name: str
) -> None:
    began, seen = time.monotonic(), len(healthy)
    answer = sent(server, name)
    assert time.monotonic() - began < IN_TIME
    assert fits(outcome(answer), BODIES[name][1]), answer.text
    assert len(answer.text) < 2000
    server.wait_until(lambda: len(healthy) > seen, "the healthy stream stands still")


@pytest.mark.slow
def test_all_of_them_at_once_leave_the_server_alive(server: Running) -> None:
    with ThreadPoolExecutor(len(BODIES)) as pool:
        answers = list(pool.map(lambda name: sent(server, name), BODIES))
    assert {answer.status_code for answer in answers} <= {200, 400, 413, 429}
    assert server.get("/health").status_code == 200
