"""The commands of the pages, run as a shell would run them, without the wait for new processes.

Owns how a block falls into commands, and where each of them runs: ``mlxgen.generate`` in this
process, ``curl`` as a request to the server of the tests, everything else in a shell.
"""

from __future__ import annotations

import argparse
import re
import shlex
from typing import NamedTuple

from .pages import Block

ADDRESS = "http://127.0.0.1:8080"
"""The server's, in every page."""

GENERATE = ("mlxgen.generate", "scripts/run")
SERVER = ("mlxgen.server",)


class Command(NamedTuple):
    """A command, and what the page says that it prints (``""``: the page does not say)."""

    text: str
    output: str = ""

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)

    @property
    def program(self) -> str:
        """The last program of a pipe, by the name that it is installed with."""
        words = shlex.split(self.stages[-1], comments=True)
        if words[1:2] == ["-m"] and words[0].rpartition("/")[2].startswith("python"):
            return words[2]
        return words[0].removeprefix(".venv/bin/")

    @property
    def stages(self) -> list[str]:
        """The programs of a pipe with their arguments."""
        quoted = r"'[^']*'|\"(?:\\.|[^\"])*\"|[^'\"|]"
        return [stage.strip() for stage in re.findall(rf"(?:{quoted})+", self.text)]


def commands(block: Block) -> list[Command]:
    """The commands of an ``sh`` or ``console`` block."""
    if block.kind == "sh":
        return [Command(text) for text in _whole(block.code.splitlines())]
    found = []
    for part in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        end = next((i for i, line in enumerate(lines[1:], 1) if not line.startswith("> ")), None)
        typed = [lines[0], *(line[2:] for line in lines[1:end])]
        (text,) = _whole(typed)
        found.append(Command(text, "" if end is None else "\n".join(lines[end:]).rstrip()))
    return found


def _whole(lines: list[str]) -> list[str]:
    """Lines put together where a quote, a pipe or a backslash leaves one open."""
    whole: list[str] = []
    pending = ""
    for line in lines:
        if line.startswith("#") or not (pending or line.strip()):
            continue
        pending += line + "\n"
        try:
            words = shlex.split(pending.replace("\\\n", " "), comments=True)
        except ValueError:  # inside of a quote
            continue
        if (words and words[-1] == "|") or line.endswith("\\"):
            continue
        whole.append(pending.replace("\\\n", " ").strip())
        pending = ""
    assert not pending, f"not a whole command: {pending}"
    return whole


def request_of(words: list[str]) -> tuple[str, str, dict[str, str], str | None]:
    """Method, URL, headers and body of a ``curl``; whatever else it says is an error."""
    parser = argparse.ArgumentParser(prog="curl", exit_on_error=False)
    parser.add_argument("url")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", dest="data")
    parser.add_argument("-N", "-s", action="store_true")
    given = parser.parse_args(words[1:])
    headers = dict(header.split(": ", 1) for header in given.headers)
    return "GET" if given.data is None else "POST", given.url, headers, given.data


def same_output(found: str, wanted: str) -> bool:
    """Whether a command printed what its page says; times and rates may differ."""

    def plain(text: str) -> str:
        return re.sub(r"\d+\.\d+", "0.0", text.strip())

    return plain(found) == plain(wanted)
