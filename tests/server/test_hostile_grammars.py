"""Grammars that are meant to be too costly: each is answered, and others are served meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from .running import WAIT, Running, question, running


def held(schema: Mapping[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}
    return {"response_format": form}


def properties(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {} for i in range(count)}}


def chain(names: str, end: str, count: int) -> str:
    """Rules each of which is the next one."""
    links = [f"{names}{i}: {names}{i + 1}" for i in range(count)]
    return "\n".join([f"start: {names}0", *links, f"{names}{count}: {end}"])


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def choices(count: int, ways: int) -> dict[str, Any]:
    """A schema whose alternatives multiply."""
    return {
        "allOf": [
            {"anyOf": [{"properties": {f"a{i}{j}": {"const": j}}} for j in range(ways)]}
            for i in range(count)
        ]
    }


TABLE: dict[str, dict[str, Any]] = {
    "1,000 properties": held(properties(1000)),
    "9,000 properties": held(properties(9000)),
    "nested 100 deep": held(nested(100)),
    "nested 500 deep": held(nested(500)),
    "alternatives that multiply": held(choices(8, 4)),
    "a large modulus": held({"type": "integer", "multipleOf": 999_983}),
    "50,000 strings": held({"enum": [f"v{i}" for i in range(50_000)]}),
    "long repetitions": {"regex": "(a{1,5000}){1,5000}"},
    "quantifiers in quantifiers": {"regex": "((a+)+)+b"},
    "an automaton that doubles": {"regex": "(a|b)*a(a|b){30}"},
    "5,000 brackets": {"regex": "(" * 5000 + "a" + ")" * 5000},
    "900 rules in a chain": {"grammar": chain("r", '"a"', 900)},
    "900 rules in a chain with a fault": {"grammar": chain("r", "nobody", 900)},
    "900 tokens in a chain with a fault": {"grammar": chain("T", '"a" /(/', 900)},
    "20,000 rules in a chain": {"grammar": chain("r", '"a"', 20_000)},
    "any number of ways": {"grammar": 'start: a\na: a a | "x" | a a a'},
    "recursion to the left": {"grammar": 'start: start start | start "a" | "b"'},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as ready:
        yield ready


@contextmanager
def served(server: Running) -> Iterator[None]:
    """Someone else is answered all the while, and at least once."""
    over, statuses = threading.Event(), list[int]()

    def ask() -> None:
        while not over.is_set() or not statuses:
            statuses.append(server.chat(question(max_tokens=4), timeout=WAIT).status_code)

    other = threading.Thread(target=ask)
    other.start()
    try:
        yield
    finally:
        over.set()
        other.join()
    assert set(statuses) == {200}


HEAVY = ("9,000 properties", *[name for name in TABLE if "fault" in name])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in HEAVY else ()) for name in TABLE]
)
def test_each_is_answered_and_others_are_served(server: Running, name: str) -> None:
    with served(server):
        answer = server.chat(question(max_tokens=8, **TABLE[name]), timeout=WAIT)
    assert answer.status_code in (200, 400)
    if answer.status_code == 400:
        error = answer.json()["error"]
        if error["code"] != "invalid_json":  # more deeply nested than any body may be
            assert error["code"] in ("invalid_grammar", "invalid_value")
            assert error["param"].partition(".")[0] in TABLE[name]


@pytest.mark.slow
def test_many_of_them_at_once_leave_the_server_alive(server: Running) -> None:
    statuses: list[int] = []

    def send(fields: Mapping[str, Any]) -> None:
        statuses.append(server.chat(question(max_tokens=8, **fields), timeout=2 * WAIT).status_code)

    senders = [threading.Thread(target=send, args=(fields,)) for fields in TABLE.values()]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert len(statuses) == len(TABLE) and set(statuses) <= {200, 400, 429}
    assert server.get("/health").status_code == 200
