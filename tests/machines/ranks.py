"""Several ranks of MLX's ring on this machine.

``run`` starts a process for each rank as ``mlx.launch`` does, and always ends what it started.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from .. import processes
from ..processes import Process

ROOT = Path(__file__).parents[2]


class Ended(NamedTuple):
    """What became of a rank; ``code`` is negative if a signal ended it."""

    code: int
    out: str
    err: str


class Ranks:
    """Processes that run, by rank; each may be signalled."""

    def __init__(self, processes: Sequence[Process], folder: Path) -> None:
        self.processes = processes
        self._folder = folder

    def out(self, rank: int) -> str:
        """What a rank has printed so far."""
        return (self._folder / f"{rank}.out").read_text()

    def err(self, rank: int) -> str:
        """The same on stderr."""
        return (self._folder / f"{rank}.err").read_text()

    def wait_for(self, text: str, rank: int = 0, timeout: float = 60) -> None:
        """Wait until a rank has printed ``text``; fail with what it printed if it does not."""
        until = time.monotonic() + timeout
        while text not in self.out(rank):
            ended = self.processes[rank].poll() is not None
            if ended or time.monotonic() > until:
                raise AssertionError(
                    f"no {text!r} of rank {rank}: {self.out(rank)}{self.err(rank)}"
                )
            time.sleep(0.01)

    def wait(self, timeout: float = 60) -> list[Ended]:
        """What became of each rank. Whoever still runs after ``timeout`` seconds is killed."""
        until = time.monotonic() + timeout
        ended = []
        for rank, process in enumerate(self.processes):
            late = ""
            try:
                process.wait(max(0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                late = f"\nkilled, as it still ran after {timeout} s"
            ended.append(Ended(process.wait(), self.out(rank), self.err(rank) + late))
        return ended


@contextmanager
def started(
    command: Sequence[str], size: int = 2, *, env: Mapping[str, str] | None = None
) -> Iterator[Ranks]:
    """``python COMMAND`` in each of ``size`` ranks. They are killed at the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hostfile = folder / "hosts.json"
        hostfile.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(size)]))
        found = []
        for rank in range(size):
            if rank == size - 1:  # it connects to rank 0, and waits a second if nobody listens yet
                time.sleep(0.15)
            out = stack.enter_context((folder / f"{rank}.out").open("wb"))
            err = stack.enter_context((folder / f"{rank}.err").open("wb"))
            said = {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hostfile)}
            own = {"PYTHONPATH": str(ROOT), **(env or {}), **said}
            process = processes.start(command, None, out.fileno(), err.fileno(), own)
            stack.callback(process.wait)
            stack.callback(process.kill)
            found.append(process)
        yield Ranks(found, folder)


def run(
    command: Sequence[str],
    size: int = 2,
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> list[Ended]:
    """Run ``python COMMAND`` (``["-m", "a.module", "an argument"]``, ``["-c", "a program"]``) in
    ``size`` ranks to its end."""
    with started(command, size, env=env) as ranks:
        return ranks.wait(timeout)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in found]
