"""A server that is full, a key, other origins, and requests that take too long."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import httpx
import pytest

from .exchanges import carry_out
from .running import Running, endless, error, question

KEY = {"x-api-key": "open-sesame"}
TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def full() -> Iterator[Running]:
    """A server with a key, and room for two rows that run and two that wait."""
    with Running(
        *("--max-batch", "2", "--max-queue", "2", "--max-context", "512"),
        *("--cors-origin", "http://localhost:3000", "--log-format", "json"),
        *("--hook", "slow=tests.server.own_code:slow"),
        *("--request-timeout", "20", "--alias", "small", "--strict-model"),
        MLXGEN_API_KEY="open-sesame",
    ) as server:
        yield server


@pytest.mark.parametrize("path", [TEXT, "/completion"])
def test_who_asks_is_told_how_many_begin_before(full: Running, path: str) -> None:
    def stream(path: str = path, **more: object) -> AbstractContextManager[httpx.Response]:
        body = {"prompt": "a b c", "max_tokens": 2, "return_progress": True, **more}
        return full.held(path, body, KEY)

    def data(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
        return (json.loads(line[6:]) for line in lines if line.startswith("data: {"))

    endless = {"n": 2, "max_tokens": 450, "ignore_eos": True, "hooks": ["slow"]}
    with stream(TEXT, **endless) as taken:
        begun = data(taken.iter_lines())
        while not next(begun)["choices"][0]["text"]:
            pass
        with stream() as second, stream() as third:
            both = data(second.iter_lines()), data(third.iter_lines())
            firsts = [next(each)["prompt_progress"] for each in both]
            assert [first["queue"] for first in firsts] == [0, 1]
            taken.close()
            rest = [[e["prompt_progress"] for e in each if "prompt_progress" in e] for each in both]
    for first, told in zip(firsts, rest, strict=True):
        assert (first["processed"], first["cache"], first["time_ms"]) == (0, 0, 0.0)
        assert first["total"] == told[-1]["total"] == told[-1]["processed"]
        assert "queue" not in told[-1]


def test_who_waits_is_told_again_if_one_before_leaves(full: Running) -> None:
    waits = {"prompt": "a b c", "max_tokens": 2, "return_progress": True}
    taken = {"prompt": "a", "n": 2, "max_tokens": 450, "ignore_eos": True, "hooks": ["slow"]}
    with full.held(TEXT, taken, KEY):
        full.wait_until(lambda: full.get("/health").json()["running"] == 2, "they do not run")
        with full.held(TEXT, waits, KEY) as second, full.held(TEXT, waits, KEY) as third:
            told = (json.loads(line[6:]) for line in third.iter_lines() if line[:6] == "data: ")
            assert next(told)["prompt_progress"]["queue"] == 1
            second.close()
            assert next(told)["prompt_progress"]["queue"] == 0
    full.wait_idle()


def test_a_probe_for_a_free_slot_fails_while_all_are_taken(full: Running) -> None:
    body = {"prompt": "a", "n": 2, "max_tokens": 450, "ignore_eos": True}
    probe = partial(full.get, "/slots?fail_on_no_slot=1", headers=KEY)
    with full.held(TEXT, body, KEY) as answer:
        lines = answer.iter_lines()
        while probe().status_code != 503:
            next(lines)  # ends with an error if the answer does
    full.wait_idle()
    assert probe().status_code == 200


def test_a_key_is_needed_and_names_and_the_context_are_limited(full: Running) -> None:
    carry_out(full, "full")


def test_answers_that_do_not_fit_as_a_whole_leave_nothing_behind(full: Running) -> None:
    body = {"prompt": "a", "n": 2, "max_tokens": 450, "ignore_eos": True, "hooks": ["slow"]}
    with full.held(TEXT, body, KEY), full.held(TEXT, body | {"n": 1}, KEY):
        full.wait_until(lambda: full.rows() == 3, "they do not run")
        refused = full.post(TEXT, {"prompt": "a", "n": 2}, headers=KEY)
        assert error(refused, 429)["code"] == "rate_limit_exceeded"
        assert full.rows() == 3
    full.wait_idle()


def test_the_log_has_no_text_of_requests_or_answers(full: Running) -> None:
    secret = "xylophone"
    answer = full.chat(question(f"Say {secret}", max_tokens=5), headers=KEY)
    assert answer.status_code == 200
    assert full.post(TEXT, {"prompt": secret, "stop": {secret: 1}}, headers=KEY).status_code == 400
    assert full.post(TEXT, {"prompt": "a", "regex": f"({secret}"}, headers=KEY).status_code == 400
    full.wait_until(lambda: "invalid" in full.log[-1], "the request is not logged")
    assert not any(secret in line or "Paris" in line for line in full.log)
    assert all(line.startswith("{") for line in full.log)


@pytest.mark.slow
def test_requests_have_a_time_limit() -> None:
    with Running("--request-timeout", "1.5", "--max-batch", "2") as server:
        assert error(server.post(TEXT, endless()), 504)["code"] == "timeout"
        stream = server.post(TEXT, endless(stream=True))
        assert stream.status_code == 200
        *_, last, done = stream.text.strip().split("\n\n")
        assert '"code":"timeout"' in last
        assert done == "data: [DONE]"
        server.wait_idle()
