"""A server that is full, a key, other origins, and requests that take too long."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def taken(full: Running) -> Iterator[httpx.Response]:
    """An answer that takes both rows until it is left."""
    body = {"prompt": "a", "n": 2, "max_tokens": 450, "ignore_eos": True, "hooks": ["slow"]}
    with full.held(TEXT, body, KEY) as answer:
        full.wait_until(lambda: full.get("/health").json()["running"] == 2, "they do not run")
        yield answer
    full.wait_idle()


def progress_of(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """How far a stream says that its prompt is."""
    for line in answer.iter_lines():
        if line.startswith("data: {") and "prompt_progress" in (event := json.loads(line[6:])):
            yield event["prompt_progress"]


WAITS = {"prompt": "a b c", "max_tokens": 2, "return_progress": True}


@pytest.mark.parametrize("path", [TEXT, "/completion"])
def test_who_asks_is_told_how_many_begin_before(full: Running, path: str) -> None:
    with (
        taken(full) as first,
        full.held(path, WAITS, KEY) as second,
        full.held(path, WAITS, KEY) as third,
    ):
        both = [progress_of(answer) for answer in (second, third)]
        begun = [next(told) for told in both]
        assert [each["queue"] for each in begun] == [0, 1]
        first.close()
        ends = [list(told)[-1] for told in both]
    for early, late in zip(begun, ends, strict=True):
        assert (early["processed"], early["cache"], early["time_ms"]) == (0, 0, 0.0)
        assert early["total"] == late["total"] == late["processed"] and "queue" not in late


def test_who_waits_is_told_again_if_one_before_leaves(full: Running) -> None:
    with (
        taken(full),
        full.held(TEXT, WAITS, KEY) as second,
        full.held(TEXT, WAITS, KEY) as third,
    ):
        told = progress_of(third)
        assert next(told)["queue"] == 1
        second.close()
        assert next(told)["queue"] == 0


def test_a_probe_for_a_free_slot_fails_while_all_are_taken(full: Running) -> None:
    probe = partial(full.get, "/slots?fail_on_no_slot=1", headers=KEY)
    with taken(full):
        assert probe().status_code == 503
    assert probe().status_code == 200


def test_a_key_is_needed_and_names_and_the_context_are_limited(full: Running) -> None:
    carry_out(full, "full")


def test_answers_that_do_not_fit_as_a_whole_leave_nothing_behind(full: Running) -> None:
    with taken(full), full.held(TEXT, WAITS, KEY):
        full.wait_until(lambda: full.rows() == 3, "it does not wait")
        refused = full.post(TEXT, {"prompt": "a", "n": 2}, headers=KEY)
        assert error(refused, 429)["code"] == "rate_limit_exceeded"
        assert full.rows() == 3


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
