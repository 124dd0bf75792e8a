"""Server processes of mlxgen and of mlx-lm, and the content of their answers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from typing import Any, Literal, NamedTuple

START, ANSWER = 90.0, 20.0  # seconds that a server may take to be ready, and to answer
HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Asked(NamedTuple):
    """The status of an answer, the seconds to its first event, and the events of a stream, or the
    only JSON object."""

    status: int
    first: float
    events: list[dict[str, Any]]


class Folded(NamedTuple):
    """The message of each choice, its finish reason, and the usage."""

    messages: list[dict[str, Any]]
    ends: list[str | None]
    usage: dict[str, Any]


def folded(events: Iterable[Mapping[str, Any]]) -> Folded:
    """The fold of a stream's events, or of a whole answer, in OpenAI's chat or completions API."""
    found: dict[int, tuple[dict[str, Any], list[str | None]]] = {}
    usage: dict[str, Any] = {}
    for event in events:
        usage = event.get("usage") or usage
        for choice in event.get("choices", ()):
            empty = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
            message, ends = found.setdefault(choice["index"], (empty, []))
            ends.append(choice.get("finish_reason"))
            part = choice.get("message") or choice.get("delta") or {}
            message["content"] += choice.get("text") or part.get("content") or ""
            thought = part.get("reasoning_content") or part.get("reasoning") or ""
            message["reasoning_content"] += thought
            calls = message["tool_calls"]
            for i, call in enumerate(part.get("tool_calls") or ()):
                if call.get("index", i) == len(calls):
                    calls.append(
                        {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                    )
                known = calls[call.get("index", i)]
                known["id"] += call.get("id") or ""
                for name, text in (call.get("function") or {}).items():
                    known["function"][name] += text or ""
    order = [found[number] for number in sorted(found)]
    last = [next(filter(None, reversed(ends)), None) for _, ends in order]
    return Folded([message for message, _ in order], last, usage)


class Server:
    """A server process, of mlxgen or of mlx-lm, on a free port: from ``start`` to ``stop``, or
    inside a ``with``."""

    def __init__(
        self,
        name: Literal["mlxgen", "mlx_lm"],
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self._arguments = name, arguments
        self._environment = {**os.environ, **(environment or {})}

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        level = "warning" if self.name == "mlxgen" else "ERROR"
        command = [sys.executable, "-m", f"{self.name}.server", "--port", str(self.port)]
        command += ["--log-level", level, *self._arguments]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, env=self._environment
        )
        end = time.monotonic() + START
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > end:
                reason = self.logged()[-500:]
                self.stop()
                raise RuntimeError(f"{self.name}.server does not start: {reason}")
            time.sleep(0.2)

    def stop(self) -> None:
        """End the server as its operator would, or by force if it does not end."""
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def answers(self) -> bool:
        """Whether a small request is answered in time."""
        with contextlib.suppress(OSError, HTTPException):
            return self.ask({"prompt": "Hello", "max_tokens": 1}).status == 200
        return False

    def ask(
        self,
        body: Mapping[str, Any] | str,
        path: str = "/v1/completions",
        *,
        timeout: float = ANSWER,
        leaves_after: int | None = None,
    ) -> Asked:
        """Send a request and read its events, ``leaves_after`` at most, or its only answer."""
        data = body if isinstance(body, str) else json.dumps(body)
        with contextlib.closing(HTTPConnection(HOST, self.port, timeout=timeout)) as connection:
            start = time.perf_counter()
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            first, events = 0.0, list[dict[str, Any]]()
            if response.getheader("content-type", "").startswith("text/event-stream"):
                while len(events) != leaves_after and (line := response.readline()):
                    if line.startswith(b"data: {"):
                        first = first or time.perf_counter() - start
                        events.append(json.loads(line[6:]))
            elif (text := response.read())[:1] == b"{":
                events.append(json.loads(text))
            return Asked(response.status, first or time.perf_counter() - start, events)

    def memory(self) -> int:
        """The resident bytes of the process."""
        command = ["ps", "-o", "rss=", "-p", str(self.process.pid)]
        return int(subprocess.run(command, capture_output=True, check=True).stdout) << 10

    def logged(self) -> str:
        """The server's output since its start."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")
