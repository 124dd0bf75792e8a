"""A prompt that takes long to run: headers, signs of life, time limits, and a client that leaves.

The server is told when to go on, by a file, so that nothing depends on how long anything takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from .running import WAIT, Running, running

WORDS = "word " * 300
ASKED: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": WORDS}]},
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": WORDS}]},
    "/v1/responses": {"input": WORDS},
}
SIGNS = {
    "/v1/chat/completions": r": keepalive 16/\d+",
    "/v1/messages": "event: ping|: the prompt is being run",
    "/v1/responses": "event: response.in_progress",
}
ENDS = {
    "/v1/chat/completions": r"data: \[DONE\]",
    "/v1/messages": "event: message_stop",
    "/v1/responses": r"event: response\.(incomplete|completed)",
}


class Gate:
    """Shut, the server gets stuck as soon as it has run a piece of a prompt.

    It opens it after twelve signs of life of one stream.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def shut(self, server: Running) -> None:
        self.open()
        server.chat({"max_tokens": 1})  # it goes on
        self._path.touch()

    def open(self) -> None:
        self._path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return Gate(tmp_path_factory.mktemp("gate") / "shut")


@pytest.fixture(scope="module")
def server(gate: Gate) -> Iterator[Running]:
    with running(
        module="tests.server.broken",
        BREAKS="prefill",
        WHILE=str(gate._path),
        SILENCE="0.05",
    ) as server:
        yield server


@pytest.fixture(autouse=True)
def _open(gate: Gate) -> Iterator[None]:
    yield
    gate.open()


def asked(path: str, name: str, **fields: Any) -> dict[str, Any]:
    """A streamed request whose prompt no other one begins with."""
    body = {**ASKED[path], "stream": True, "temperature": 0, **fields}
    if path == "/v1/chat/completions":
        return {**body, "max_tokens": 9, "messages": [{"role": "user", "content": name + WORDS}]}
    if path == "/v1/responses":
        return {**body, "max_output_tokens": 9, "input": name + WORDS}
    return {**body, "messages": [{"role": "user", "content": name + WORDS}]}


@pytest.mark.parametrize("path", ASKED)
def test_headers_and_signs_of_life_come_while_a_prompt_is_run(
    path: str, server: Running, gate: Gate
) -> None:
    gate.shut(server)
    body = asked(path, f"{path} ")
    with httpx.stream("POST", server.url + path, json=body, timeout=WAIT) as answer:
        assert answer.status_code == 200
        lines, seen, signs = answer.iter_lines(), list[str](), 0
        while signs < 3:
            seen.append(next(lines))
            signs += bool(re.fullmatch(SIGNS[path], seen[-1]))
        gate.open()
        seen += lines
    assert sum(bool(re.fullmatch(ENDS[path], line)) for line in seen) == 1
    if path == "/v1/messages":
        start = next(i for i, line in enumerate(seen) if line.startswith("event: "))
        assert seen[start] == "event: message_start", "readers expect it before a ping"
        usage = seen[start + 1]
        whole = server.post(path, {**body, "stream": False}).json()["usage"]
        total = whole["input_tokens"] + whole["cache_read_input_tokens"]
        [fresh] = re.findall(r'"input_tokens":(\d+)', usage)
        [cached] = re.findall(r'"cache_read_input_tokens":(\d+)', usage)
        assert int(fresh) + int(cached) == total


@pytest.mark.parametrize("path", ASKED)
def test_how_far_the_prompt_is_is_told_to_those_who_ask(path: str, server: Running) -> None:
    answer = server.post(path, asked(path, f"progress {path} ", return_progress=True))
    events = [json.loads(data) for data in re.findall(r"data: (\{.*\})", answer.text)]
    told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    run = [each["processed"] for each in told]
    assert len(run) > 3 and run == sorted(run)
    assert run[-1] == told[-1]["total"]
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    assert numbers == list(range(len(numbers)))


def test_the_official_client_of_messages_takes_them(server: Running, gate: Gate) -> None:
    gate.shut(server)
    message = [{"role": "user", "content": f"official {WORDS}"}]
    with (
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
        client.messages.stream(model="any", max_tokens=9, messages=message) as stream,  # type: ignore[arg-type]
    ):
        final = stream.get_final_message()
    assert final.stop_reason in ("max_tokens", "end_turn")
    assert final.usage.output_tokens > 0


def test_the_official_client_of_chats_and_responses_takes_them(server: Running, gate: Gate) -> None:
    gate.shut(server)
    with server.client() as client:
        chunks = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": f"chats {WORDS}"}],
            max_tokens=9,
            stream=True,
        )
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("length", "stop")
    gate.shut(server)
    with (
        server.client() as client,
        client.responses.stream(
            model="demo", input=f"responses {WORDS}", max_output_tokens=16
        ) as stream,
    ):
        kinds = [event.type for event in stream]
    assert kinds[0] == "response.created" and kinds[-1] in (
        "response.incomplete",
        "response.completed",
    )
    assert kinds.count("response.in_progress") >= 2


@pytest.mark.parametrize("path", ASKED)
def test_who_left_while_the_prompt_was_run_goes_on_from_there(
    path: str, server: Running, gate: Gate
) -> None:
    body = asked(path, f"left {path} ")
    gate.shut(server)
    with httpx.stream("POST", server.url + path, json=body, timeout=WAIT) as answer:
        for line in answer.iter_lines():
            if re.fullmatch(SIGNS[path], line):
                break
    server.wait_until(lambda: server.figure("mlxgen_requests_in_progress") == 0, "it stays")
    gate.open()
    usage = server.post(path, {**body, "stream": False}).json()["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    cached = details.get("cached_tokens", usage.get("cache_read_input_tokens"))
    assert cached >= 16


# ---- time limits


@pytest.mark.slow
def test_the_time_of_waiting_is_limited(gate: Gate) -> None:
    with running(
        *("--queue-timeout", "0.3"),
        module="tests.server.broken",
        BREAKS="hang",
        WHILE=str(gate._path),
    ) as server:
        gate.shut(server)
        answer = server.chat({"max_tokens": 2})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
        assert "retry-after" in answer.headers
        gate.open()
        server.wait_idle()
