"""Chats in pseudo-terminals of their own."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "mlxgen.generate", "--chat"]
ANSI = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Children get SIGINT as in a terminal, whatever this process does with it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Terminal:
    """A chat in a pseudo-terminal of its own."""

    def __init__(self, *options: str, command: Sequence[str] = COMMAND) -> None:
        self.master, slave = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
        self.process = subprocess.Popen(
            # A session of its own, with this terminal: so that Ctrl-C there is a signal here.
            [
                sys.executable,
                "-c",
                "import fcntl, os, sys, termios\n"
                "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
                "os.execv(sys.argv[1], sys.argv[1:])",
                *command,
                *options,
            ],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**environment, "TERM": "xterm-256color"},
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, pattern: str, *, again: str = "") -> str:
        """What is shown up to where a pattern matches, without escape sequences but dimming.

        ``again`` is typed where nothing comes: readline does not see a signal that arrives
        between the echo of a key and its wait for the next one.
        """
        shown = b""
        silences = 0
        while True:
            text = ANSI.sub(lambda found: _only_dimming(found.group()), shown)
            decoded = text.decode(errors="replace").replace("\r\n", "\n")
            if re.search(pattern, decoded):
                return decoded
            if select.select([self.master], [], [], 5)[0]:
                shown += os.read(self.master, 4096)
            else:
                silences += 1
                assert silences < 12, f"nothing more comes after {decoded!r}"
                self.type(again)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


def _only_dimming(sequence: bytes) -> bytes:
    return {b"\x1b[2m": b"<dim>", b"\x1b[0m": b"</dim>"}.get(sequence, b"")


@pytest.fixture
def terminal(interruptible: None) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*options: str, **how: Any) -> Terminal:
        opened.append(Terminal(*options, **how))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
