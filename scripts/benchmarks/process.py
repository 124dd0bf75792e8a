"""A server process of ours, with what it takes of the machine.

Owns its start, its end, its memory and its children. Must never know what it is asked.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx

import mlxgen

DRAFT = str(Path(mlxgen.__file__).parent / "demo" / "draft")  # the demo model's


class Process:
    """``mlxgen.server`` on a free port; ``url`` is its address."""

    def __init__(self, *arguments: str, descriptors: int | None = None) -> None:
        command = [sys.executable, "-m", "mlxgen.server", "--port", "0", *arguments]
        if descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        if "ready on " not in line:
            reason = self.logged()[-500:]
            self.close()
            raise RuntimeError(f"mlxgen.server does not start: {reason}")
        self.url = line.split("ready on ")[1].split(",")[0].strip()
        self.host, _, port = self.url.removeprefix("http://").rpartition(":")
        self.port = int(port)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def answers(self, seconds: float = 20.0) -> bool:
        """Whether a small request is answered in time."""
        with contextlib.suppress(httpx.HTTPError):
            body = {"prompt": "Hello", "max_tokens": 1}
            return httpx.post(f"{self.url}/v1/completions", json=body, timeout=seconds).is_success
        return False

    def memory(self) -> int:
        """Resident bytes."""
        return int(_ps("-o", "rss=", "-p", str(self.pid)).split()[0]) << 10

    def children(self) -> list[int]:
        """The processes that it has started, which compile and render for it."""
        rows = (line.split() for line in _ps("-A", "-o", "pid=,ppid=").splitlines())
        return [int(pid) for pid, parent in rows if int(parent) == self.pid]

    def figures(self) -> dict[str, float]:
        """The figures of ``/metrics`` that have no labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=20).text
        rows = (line.split(" ") for line in text.splitlines() if line[:1] not in ("#", ""))
        return {name: float(value) for name, *_, value in rows if "{" not in name}

    def logged(self) -> str:
        """What it has written to its log."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def close(self) -> int:
        """Be rid of it, however it is."""
        if self.lives:
            self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()
        return self.process.wait()


@contextlib.contextmanager
def served(*arguments: str, descriptors: int | None = None) -> Iterator[Process]:
    """A server that is ready, and is gone afterwards."""
    server = Process(*arguments, descriptors=descriptors)
    try:
        yield server
    finally:
        server.close()


def _ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=True).stdout
