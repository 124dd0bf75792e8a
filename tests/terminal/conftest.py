"""Chats at the command line: in this process with a model that does as it is told, and in
pseudo-terminals of their own with the demo model."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from mlxgen import LanguageModel
from mlxgen.generate import main

from ..processes import start

COMMAND = ["-m", "mlxgen.generate", "--chat"]
ANSI = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


class Talk(NamedTuple):
    """What came of a chat: what was printed, and the conversation as ``/save`` wrote it."""

    status: int
    shown: str
    noted: str
    saved: dict[str, Any]

    @property
    def said(self) -> list[tuple[str, str]]:
        """Messages with their answers."""
        messages = self.saved.get("messages", ())
        texts = [each["content"] for each in messages if each["role"] != "system"]
        return list(zip(texts[::2], texts[1::2], strict=True))

    @property
    def errors(self) -> list[str]:
        return re.findall(r"^error: (.*)$", self.noted, re.MULTILINE)


Talking: TypeAlias = Callable[..., Talk]
"""Types lines at ``mlxgen.generate --chat ARGV``; ``typing``: as a person does, and ``colours``:
where colours are wanted."""


class Typing(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def talk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Talking:
    path = tmp_path / "said.json"

    def run(
        lm: LanguageModel,
        *lines: str,
        argv: Sequence[str] = (),
        typing: bool = False,
        colours: bool = False,
    ) -> Talk:
        path.unlink(missing_ok=True)
        text = "".join(f"{line}\n" for line in (*lines, f"/save {path}"))
        data = io.BytesIO(text.encode(errors="surrogateescape"))
        monkeypatch.setattr(sys.modules["mlxgen.load"], "load", lambda *_, **options: lm)
        monkeypatch.setattr(sys, "stdin", (Typing if typing else io.TextIOWrapper)(data))
        monkeypatch.setenv("FORCE_COLOR", "1" if colours else "0")
        monkeypatch.delenv("NO_COLOR", raising=False)
        capsys.readouterr()
        status = main(["--chat", *argv])
        shown, noted = capsys.readouterr()
        noted = re.sub(r"^(> |\.\.\. )+|^(> )*saved to .*said\.json.*\n", "", noted, flags=re.M)
        saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return Talk(status, shown, noted, saved)

    return run


# ---- terminals ----


class Terminal:
    """A chat in a pseudo-terminal of its own."""

    greeting: str

    def __init__(self, *options: str, command: Sequence[str] = COMMAND) -> None:
        self.master, slave = pty.openpty()
        # A session of its own, with this terminal: so that Ctrl-C there is a signal here
        program = """if True:
            import fcntl, os, runpy, sys, termios
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            kind, what, *sys.argv[1:] = sys.argv[1:]
            if kind == "-m":
                runpy.run_module(what, run_name="__main__", alter_sys=True)
            else:
                exec(what)
        """
        plain = dict.fromkeys(("NO_COLOR", "FORCE_COLOR"))
        own = {**plain, "TERM": "xterm-256color"}
        self.process = start(["-c", program, *command, *options], slave, slave, slave, own)
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def ask(self, line: str, pattern: str) -> str:
        """Type a line; what is shown up to where a pattern matches."""
        self.type(f"{line}\n")
        return self.until(pattern)

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
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Begins chats, which get SIGINT as in a terminal, whatever this process does with it."""
    opened: list[Terminal] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(*options: str, **how: Any) -> Terminal:
        opened.append(one := Terminal(*options, **how))
        one.greeting = one.until("\n> ")
        return one

    yield start
    signal.signal(signal.SIGINT, before)
    for each in opened:
        each.close()
