"""Clients that leave or do not read: their rows are freed, and nobody else notices."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from .running import Running, endless, question

TEXT = "/v1/completions"
PROMPT = "word " * 1500
IN_TIME = 30.0


@pytest.fixture(scope="module")
def small() -> Iterator[Running]:
    """A server that runs two rows at a time."""
    with Running("--max-batch", "2", "--request-timeout", "100") as server:
        yield server


def left(server: Running) -> float:
    return server.figure('mlxgen_requests_total{endpoint="/v1/completions",outcome="client_gone"}')


def test_a_request_that_is_left_before_its_answer_frees_its_rows(server: Running) -> None:
    with server.send(TEXT, endless(n=3)):
        server.wait_until(lambda: server.rows() == 3, "the rows do not run")
    server.wait_idle()


def test_rows_that_are_left_while_they_wait_or_are_prefilled_are_freed(small: Running) -> None:
    gone = left(small)
    with contextlib.ExitStack() as running_, contextlib.ExitStack() as waiting:
        for _ in range(2):
            running_.enter_context(small.send(TEXT, endless(stream=True)))
        small.wait_until(lambda: small.get("/health").json()["running"] == 2, "they do not run")
        for n in range(3):
            waiting.enter_context(small.send(TEXT, endless(prompt=PROMPT, stream=n == 1)))
        small.wait_until(lambda: small.rows() == 5, "they do not wait")
        waiting.close()
        small.wait_until(lambda: small.rows() == 2, "those who wait are still there")
    small.wait_idle()
    small.send(TEXT, endless(prompt=PROMPT, stream=True)).close()
    small.wait_until(lambda: left(small) == gone + 6, "not all were seen to leave")
    small.wait_idle()
    assert small.chat({"max_tokens": 2}).status_code == 200


def test_a_client_that_does_not_read_stalls_nobody(server: Running) -> None:
    greedy = question(stream=True, logprobs=True, top_logprobs=20, ignore_eos=True)
    with server.send("/v1/chat/completions", greedy, receive=4096):
        server.wait_until(lambda: server.rows() == 1, "it does not run")
        began = time.monotonic()
        assert server.chat({"max_tokens": 8}).status_code == 200
        assert time.monotonic() - began < IN_TIME
    server.wait_idle()
    server.wait_until(lambda: server.figure("mlxgen_requests_in_progress") == 0, "it hangs")
