"""A prompt that takes long to run: headers, signs of life, time limits, and a client that leaves.

The server is told when to go on, by a file, so that nothing depends on how long anything takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from .running import WAIT, Running, Slow, error

WORDS = "word " * 300
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TEXT = "/v1/completions"
SIGNS = {
    CHAT: r": keepalive 16/\d+",
    MESSAGES: "event: ping|: the prompt is being run",
    RESPONSES: "event: response.in_progress",
}
ENDS = {
    CHAT: r"data: \[DONE\]",
    MESSAGES: "event: message_stop",
    RESPONSES: r"event: response\.(incomplete|completed)",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    slow = tmp_path_factory.mktemp("gate") / "shut"
    with Slow(slow, BREAKS="prefill", SET="exchange.SILENCE=0.05") as server:
        yield server


@contextmanager
def shut(server: Slow) -> Iterator[None]:
    """Let it get stuck as soon as it has run a piece of a prompt."""
    server.chat({"max_tokens": 1})  # it has gone on
    server.slow.touch()
    try:
        yield
    finally:
        server.slow.unlink(missing_ok=True)


def asked(path: str, name: str, **fields: Any) -> dict[str, Any]:
    """A streamed request whose prompt no other one begins with."""
    body = {"stream": True, "temperature": 0, **fields}
    if path == RESPONSES:
        return {**body, "max_output_tokens": 9, "input": name + WORDS}
    if path == TEXT:
        return {**body, "max_tokens": 9, "prompt": name + WORDS}
    return {**body, "max_tokens": 9, "messages": [{"role": "user", "content": name + WORDS}]}


def signs_of(server: Slow, path: str, body: dict[str, Any]) -> list[str]:
    """The lines of a stream; the server goes on once there were three signs of life."""
    with httpx.stream("POST", server.url + path, json=body, timeout=WAIT) as answer:
        assert answer.status_code == 200
        lines, seen, signs = answer.iter_lines(), list[str](), 0
        while signs < 3:
            seen.append(next(lines))
            signs += bool(re.fullmatch(SIGNS[path], seen[-1]))
        server.slow.unlink()
        return [*seen, *lines]


@pytest.mark.parametrize("path", SIGNS)
def test_headers_and_signs_of_life_come_while_a_prompt_is_run(path: str, server: Slow) -> None:
    body = asked(path, f"{path} ")
    with shut(server):
        seen = signs_of(server, path, body)
    assert sum(bool(re.fullmatch(ENDS[path], line)) for line in seen) == 1
    if path == MESSAGES:
        start = next(i for i, line in enumerate(seen) if line.startswith("event: "))
        assert seen[start] == "event: message_start", "readers expect it before a ping"
        usage = seen[start + 1]
        whole = server.post(path, {**body, "stream": False}).json()["usage"]
        total = whole["input_tokens"] + whole["cache_read_input_tokens"]
        [fresh] = re.findall(r'"input_tokens":(\d+)', usage)
        [cached] = re.findall(r'"cache_read_input_tokens":(\d+)', usage)
        assert int(fresh) + int(cached) == total


@pytest.mark.parametrize("path", [*SIGNS, TEXT])
def test_how_far_the_prompt_is_is_told_to_those_who_ask(path: str, server: Running) -> None:
    answer = server.post(path, asked(path, f"progress {path} ", return_progress=True))
    events = [json.loads(data) for data in re.findall(r"data: (\{.*\})", answer.text)]
    told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    run = [each["processed"] for each in told]
    assert len(run) > 3 and run == sorted(set(run)) and run[-1] == told[-1]["total"]
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("path", SIGNS)
def test_who_left_while_the_prompt_was_run_goes_on_from_there(path: str, server: Slow) -> None:
    body = asked(path, f"left {path} ")
    with shut(server):
        with httpx.stream("POST", server.url + path, json=body, timeout=WAIT) as answer:
            next(line for line in answer.iter_lines() if re.fullmatch(SIGNS[path], line))
        server.wait_until(lambda: server.figure("mlxgen_requests_in_progress") == 0, "it stays")
    usage = server.post(path, {**body, "stream": False}).json()["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    assert details.get("cached_tokens", usage.get("cache_read_input_tokens")) >= 16


@pytest.mark.slow
def test_the_time_of_waiting_is_limited(tmp_path: Path) -> None:
    with Slow(tmp_path / "shut", "--queue-timeout", "0.3", BREAKS="hang") as server:
        with shut(server):
            answer = server.chat({"max_tokens": 2})
            assert error(answer, 503)["code"] == "queue_timeout"
            assert "retry-after" in answer.headers
        server.wait_idle()
