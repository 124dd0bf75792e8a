"""Real server processes for the tests: started, asked, stopped."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from .. import processes

if TYPE_CHECKING:
    from openai import OpenAI

WAIT = 60.0  # seconds after which a test fails instead of hanging
ASK = "What is the capital of France?"


class Running:
    """One server process; once it is ready, ``url`` is its address and ``greeting`` its line."""

    def __init__(self, *arguments: str, module: str = "mlxgen.server", **environment: str) -> None:
        self.log: list[str] = []
        self.url = self.greeting = ""
        (stdout, said), (stderr, noted) = os.pipe(), os.pipe()
        command = ["-m", module, "--port", "0", *arguments]
        self.process = processes.start(command, None, said, noted, environment)
        os.close(said)
        os.close(noted)
        self.stdout, self._stderr = os.fdopen(stdout), os.fdopen(stderr)
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        for line in self._stderr:
            self.log.append(line.rstrip("\n"))

    def __enter__(self) -> Running:
        try:
            return self.wait_ready()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()

    def wait_ready(self) -> Running:
        """Wait for the line that says where it listens."""
        line = self.stdout.readline()
        assert "ready on http://" in line, (line, self.end(), self.log)
        self.greeting = line.rstrip()
        self.url = line.split("ready on ")[1].split(",")[0]
        return self

    def end(self, number: int | None = None) -> int:
        """Send a signal, if any, and wait for the end; its exit status."""
        if number is not None:
            self.process.send_signal(number)
        status = self.process.wait(WAIT)
        self._reader.join(WAIT)
        return status

    def close(self) -> None:
        """Be rid of it, however it is."""
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        self.stdout.close()
        self._stderr.close()

    # ---- asking it ---------------------------------------------------------------------------

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, api_key: str = "none") -> OpenAI:
        """The official client, without its retries."""
        from openai import OpenAI

        return OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=WAIT)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=WAIT, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, **{"timeout": WAIT, **options})

    def send_text(self, path: str, text: str, headers: Mapping[str, str]) -> httpx.Response:
        """POST what may be no JSON."""
        headers = {"content-type": "application/json", **headers}
        return httpx.post(self.url + path, content=text, headers=headers, timeout=WAIT)

    def held(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> contextlib.AbstractContextManager[httpx.Response]:
        """A stream that goes on until it is left."""
        whole = {**body, "stream": True}
        return httpx.stream("POST", self.url + path, json=whole, headers=headers, timeout=WAIT)

    @contextlib.contextmanager
    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Iterator[str]]:
        """The lines of a stream, without the ids of events."""
        whole = {**body, "stream": True}
        with httpx.stream("POST", self.url + path, json=whole, timeout=WAIT) as answer:
            assert answer.status_code == 200, answer.read()
            yield (line for line in answer.iter_lines() if not line.startswith("id: "))

    def chat(self, body: Mapping[str, Any] | None = None, **options: Any) -> httpx.Response:
        """A chat completion of one question."""
        return self.post("/v1/chat/completions", question() | dict(body or {}), **options)

    def figure(self, name: str) -> float:
        """A figure of ``/metrics``; 0 for one that nothing was counted of yet."""
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        return 0.0

    def rows(self) -> int:
        """How many rows the engine has, in any state."""
        health = self.get("/health").json()
        return int(health["running"] + health["prefilling"] + health["queued"])

    def wait_until(self, what: Callable[[], bool], why: str) -> None:
        """Wait for something to become true."""
        end = time.monotonic() + WAIT
        while not what():
            assert time.monotonic() < end, (why, self.log[-20:])
            time.sleep(0.02)

    def wait_idle(self) -> None:
        """Wait until the engine has nothing to do."""
        self.wait_until(lambda: self.rows() == 0, "rows are left")

    def send(self, path: str, body: Mapping[str, Any], *, receive: int = 0) -> socket.socket:
        """POST over a socket of its own, and leave it there; ``receive`` bounds its buffer."""
        link = socket.socket()
        if receive:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        link.settimeout(WAIT)
        link.connect(("127.0.0.1", self.port))
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        link.sendall(head.encode() + data)
        return link


class Slow(Running):
    """A server whose steps take long while there is a file."""

    def __init__(self, slow: Path, *arguments: str, **environment: str) -> None:
        self.slow = slow
        own = {"BREAKS": "slow", "WHILE": str(slow), **environment}
        super().__init__(*arguments, module="tests.server.broken", **own)

    def __enter__(self) -> Slow:
        super().__enter__()
        return self


class Put:
    """The choices of a stream of OpenAI's older APIs, put together as far as they were told."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.thoughts: dict[int, str] = {}
        self.branches: dict[int, list[int]] = {}
        self.ends: dict[int, Mapping[str, Any]] = {}
        self.retracted = 0

    def add(self, event: Mapping[str, Any]) -> None:
        for choice in event["choices"]:
            index, delta = choice["index"], choice.get("delta", choice)
            if index not in self.texts:
                assert index == len(self.texts), "choices come in the order of creation"
                self.branches[index] = choice.get("branch", [])
            for told, name, retract in (
                (self.texts, "text" if delta is choice else "content", "retract"),
                (self.thoughts, "reasoning_content", "retract_reasoning"),
            ):
                before, back = told.get(index, ""), choice.get(retract, 0)
                assert back <= len(before)
                told[index] = before[: len(before) - back] + (delta.get(name) or "")
                self.retracted += back if told is self.texts else 0
            if choice["finish_reason"]:
                assert index not in self.ends
                self.ends[index] = choice


def good(answer: httpx.Response) -> dict[str, Any]:
    """What an answer says."""
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def error(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """What a refusal says."""
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


def question(text: str = ASK, **fields: Any) -> dict[str, Any]:
    """The body of a chat completion."""
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def endless(**fields: Any) -> dict[str, Any]:
    """The body of a completion that goes on as long as the context allows."""
    return {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, **fields}


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The events of a stream up to its ``[DONE]``, which has to come."""
    for line in lines:
        if not line or line.startswith(("id: ", ":")):  # a comment keeps the connection
            continue
        assert line.startswith("data: "), line
        if line == "data: [DONE]":
            return
        yield json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream ended without [DONE]")
