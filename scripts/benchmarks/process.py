"""A server process, of mlxgen or of mlx-lm, on a free port.

Owns its start, its end, its memory and its log. Must never know what it is asked.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, Any, Literal

import httpx

import mlxgen

DRAFT = str(Path(mlxgen.__file__).parent / "demo" / "draft")  # the demo model's
START, ANSWER = 90.0, 20.0  # seconds that a server may take to be ready, and to answer


class Server:
    """It runs from ``start`` to ``stop``, or inside a ``with``."""

    def __init__(
        self,
        name: Literal["mlxgen", "mlx_lm"],
        arguments: Sequence[str] = (),
        *,
        descriptors: int | None = None,
    ) -> None:
        self.name, self.arguments, self.descriptors = name, arguments, descriptors
        self.host, self.port = "127.0.0.1", 0
        self.resets = 0  # connections of good requests that it did not take
        self.process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            self.port = probe.getsockname()[1]
        level = "warning" if self.name == "mlxgen" else "ERROR"
        command = [sys.executable, "-m", f"{self.name}.server", "--port", str(self.port)]
        command += ["--log-level", level, *self.arguments]
        if self.descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {self.descriptors}; exec "$@"', "sh", *command]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        end = time.monotonic() + START
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > end:
                reason = self.logged()[-500:]
                self.stop()
                raise RuntimeError(f"{self.name}.server does not start: {reason}")
            time.sleep(0.2)

    def stop(self) -> None:
        """Have it end as its operator does, and by force if it does not."""
        if self.process is None or self._log is None:
            return
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()
        self.process = self._log = None

    def answers(self) -> bool:
        """Whether a small request is answered in time."""
        with contextlib.suppress(OSError, HTTPException):
            return self.ask({"prompt": "Hello", "max_tokens": 1})[0] == 200
        return False

    def ask(self, body: bytes | dict[str, Any]) -> tuple[int, float, int]:
        """The status of an answer, the seconds to its first event, and its number of events."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = HTTPConnection(self.host, self.port, timeout=ANSWER)
        try:
            start = time.perf_counter()
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", data, headers)
            response = connection.getresponse()
            first, events = 0.0, 0
            while line := response.readline():
                if line.startswith(b"data: {"):
                    events += 1
                    first = first or time.perf_counter() - start
            return response.status, first or time.perf_counter() - start, events
        finally:
            connection.close()

    def memory(self) -> int:
        """Resident bytes."""
        assert self.process is not None
        command = ["ps", "-o", "rss=", "-p", str(self.process.pid)]
        return int(subprocess.run(command, capture_output=True, check=True).stdout) << 10

    def figures(self) -> dict[str, float]:
        """The figures of ``/metrics`` that have no labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=ANSWER).text
        rows = (line.split(" ") for line in text.splitlines() if line[:1] not in ("#", ""))
        return {name: float(value) for name, *_, value in rows if "{" not in name}

    def logged(self) -> str:
        """What it has written since its start."""
        assert self._log is not None
        self._log.seek(0)
        return self._log.read().decode(errors="replace")
