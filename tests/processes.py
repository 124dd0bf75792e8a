"""Modules that run as programs, in processes of their own.

Where it can be done safely, these are forked off one process that has imported what programs need:
to import all that again takes each of them two seconds of the processor.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeAlias

FORKS = sys.platform == "linux"  # elsewhere system libraries may not survive it
WAIT = 60.0  # seconds after which a test fails instead of hanging
IMPORTED = ["mlx_lm", "mlxgen.server.process", "mlxgen.server.served_model", "mlxgen.terminal"]


def start(
    command: Sequence[str],
    stdin: int | None,
    stdout: int,
    stderr: int,
    environment: Mapping[str, str | None] | None = None,
) -> Process:
    """``python COMMAND``: ``["-m", "a.module", "an argument"]`` or ``["-c", "a program"]``.

    Its files are given by their descriptors; without ``stdin`` it has nothing to read. The
    ``environment`` is what differs from the one here, with ``None`` for what is not in it.
    """
    both = {**os.environ, **(environment or {})}
    whole = {name: value for name, value in both.items() if value is not None}
    with Path(os.devnull).open() as nothing:
        pipes = (nothing.fileno() if stdin is None else stdin, stdout, stderr)
        if FORKS:
            return _Forked(command, pipes, whole)
        words = [sys.executable, *command]
        return subprocess.Popen(words, -1, None, *pipes, env=whole)


def run(
    command: Sequence[str], given: str | None = None, *, together: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, ``given`` what it reads; ``together``: its errors are in its output."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        stdin, into = os.pipe()
        os.write(into, (given or "").encode())
        os.close(into)
        pipes = out.fileno(), (out if together else err).fileno()
        process = start(command, None if given is None else stdin, *pipes)
        status = process.wait(WAIT)
        os.close(stdin)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(command), status, out.read(), err.read())


class _Forked:
    def __init__(
        self, command: Sequence[str], pipes: Sequence[int], environment: Mapping[str, str]
    ) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        links = [Connection(os.dup(pipe)) for pipe in pipes]  # as such they can be handed over
        args = (list(command), links, dict(environment))
        self._process = context.Process(target=_run, args=args)
        self._process.start()
        for link in links:
            link.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return self._process.exitcode

    def send_signal(self, number: int, /) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and nobody has said so
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process: TypeAlias = subprocess.Popen[bytes] | _Forked


def _run(command: list[str], pipes: list[Connection], environment: dict[str, str]) -> None:
    """Become what ``python`` would have started, up to what it does as it ends."""
    atexit._clear()
    for number, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(*each) for each in ((0,), (1, "w"), (2, "w", 1)))
    sys.path[:0] = ["", *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    kind, what, *arguments = command
    sys.argv = [kind, *arguments]
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(what, {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()
