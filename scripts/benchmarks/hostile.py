"""Hostile cases: what a server, and the library, does with each, and what it should do.

Owns the list of cases. Must never know how any of them is met. Invariant: after every case a good
request has to be answered, and the server of a case that went wrong is replaced.

Each case was a way to stop, fill or fool a server of this kind.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import httpx

from . import hostile_clients as clients
from . import hostile_programs as programs
from .hostile_clients import Run
from .process import Process, served
from .traffic import COMPLETION


class Case(NamedTuple):
    """``wanted``: the beginnings of what may come of it. ``arguments``: of a server of its own."""

    name: str
    wanted: tuple[str, ...]
    run: Run
    arguments: tuple[str, ...] | None = None
    descriptors: int | None = None


class Result(NamedTuple):
    """What came of a case, and whether that is right."""

    case: Case
    found: str
    met: bool


def run_cases(only: str = "") -> Iterator[Result]:
    """Run all cases with ``only`` in their name."""
    server: Process | None = None
    try:
        for case in cases():
            if only not in case.name:
                continue
            if case.arguments is not None or case.descriptors is not None:
                arguments = ("--log-level", "warning", *(case.arguments or ()))
                with served(*arguments, descriptors=case.descriptors) as own:
                    yield result_of(case, own)
                continue
            if server is None:
                server = Process("--log-level", "warning")
            result = result_of(case, server)
            if not result.met:
                server.close()
                server = None
            yield result
    finally:
        if server is not None:
            server.close()


def result_of(case: Case, server: Process) -> Result:
    """What a case does to a server, and whether that answers afterwards."""
    try:
        found = case.run(server)
    except (httpx.HTTPError, OSError, subprocess.TimeoutExpired) as error:
        found = "hung" if "imeout" in type(error).__name__ else f"mute ({type(error).__name__})"
    met = found.startswith(case.wanted)
    if found != STOPPED and not server.answers():
        found, met = f"{found}, and no answer to a good request afterwards", False
    return Result(case, found, met)


STOPPED = "exit 0"


# ---- the table -----------------------------------------------------------------------------------

_LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
_CONTRADICTION: dict[str, Any] = {"choice": ["yes"], "banned": ["yes"]}
_ASKED = {"messages": [{"role": "user", "content": "Hello"}]}
_LOOPING = {"chat_template": _LOOPS}
_MANY = {"prompt": "a", "n": 128, "max_tokens": 1, "prefix_tokens": [5] * 1900}
_PIECES = ("/tokenize", {"content": "word and word. " * 60_000, "with_pieces": True})
_JSON = b"Content-Type: application/json\r\n"
_SMALL = b'{"prompt":"a","max_tokens":1}'
_LENGTH = b"Content-Length: %d\r\n" % len(_SMALL)
_OPEN = b"POST /v1/completions HTTP/1.1\r\nHost: HOST\r\n" + _JSON
_NESTED = json.loads("[" * 200 + "]" * 200)


def cases() -> list[Case]:
    """All of them."""
    table: Mapping[str, tuple[tuple[str, ...], Run]] = {
        "a chat template that renders nothing": (
            ("400",),
            clients.templated(chat_template="{{ '' }}"),
        ),
        "a chat cut to no tokens": (("400",), clients.templated(truncation=True, max_length=0)),
        "a chat template of nested loops": (("400",), clients.templated(chat_template=_LOOPS)),
        "a chat template of half a gigabyte": (
            ("400",),
            clients.templated(chat_template="{{ 'a' * 500000000 }}"),
        ),
        "a chat padded to 10,000,000 tokens": (
            ("400",),
            clients.templated(padding="max_length", max_length=10_000_000),
        ),
        "a variable named self": (("400",), clients.templated(self=1)),
        "tensors for a chat": (("400",), clients.templated(return_tensors="np")),
        "nested lists for a variable": (("400",), clients.templated(tools=_NESTED)),
        "a chat template for /tokenize": (
            ("400 chat_template",),
            clients.sending("/tokenize", {**_ASKED, "chat_template_kwargs": _LOOPING}),
        ),
        "JSON nested 50,000 deep": (
            ("400",),
            clients.speaking(
                _OPEN
                + b"Content-Length: 100013\r\n\r\n"
                + b'{"prompt": '
                + b"[" * 50_000
                + b"]" * 50_000
                + b" }"
            ),
        ),
        "a schema of 500 optional properties": (("200",), clients.many_properties(500)),
        "a schema of 1,000 optional properties": (("200",), clients.many_properties(1000)),
        "a schema of 6,000 optional properties": (("200", "400 "), clients.many_properties(6000)),
        "a small schema beside six of 6,000 properties": (("200",), clients.fair_compilers),
        "choice and banned are the same": (
            ("400",),
            clients.sending(COMPLETION, {"prompt": "a", "max_tokens": 8, **_CONTRADICTION}),
        ),
        "a grammar that wants a control token": (
            ("400",),
            clients.sending(COMPLETION, {"prompt": "a", "grammar": "start: <|im_end|>"}),
        ),
        "four requests of 128 answers to 1,900 prefix tokens": (
            ("prompt",),
            clients.holding_up(*[(COMPLETION, _MANY)] * 4),
        ),
        "/tokenize with pieces of 900 kB": (("prompt",), clients.holding_up(*[_PIECES] * 4)),
        "the absolute form of a request line": (
            ("200",),
            clients.speaking(b"GET http://HOST/health HTTP/1.1\r\nHost: HOST\r\n\r\n"),
        ),
        "Content-Length together with Transfer-Encoding": (
            ("400, closed",),
            clients.speaking(
                _OPEN
                + _LENGTH
                + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(_SMALL)
                + _SMALL
                + b"\r\n0\r\n\r\n"
            ),
        ),
        "HEAD": (
            ("200, kept, no body",),
            clients.speaking(b"HEAD /health HTTP/1.1\r\nHost: HOST\r\n\r\n"),
        ),
        "a forged turn in a message": (("text",), clients.forged_is_text),
        "headers of a byte a second": (("cut",), clients.dawdling(clients.HEADERS)),
        "a body of a byte a second": (
            ("cut",),
            clients.dawdling(clients.BODY, begun=clients.HEADERS_OF_BODY),
        ),
        "1,100 connections inside a second request": (("200",), clients.tricklers),
        "library: an empty chat_template.jinja": (
            ("PromptError", "LoadError", "TemplateError"),
            programs.library(programs.EMPTY_TEMPLATE),
        ),
        "library: config.json nested 100,000 deep": (
            ("LoadError",),
            programs.library(programs.DEEP_CONFIG),
        ),
        "library: two threads on one stream": (
            ("StateError",),
            programs.library(programs.TWO_THREADS),
        ),
        "library: errors pickled": (("equal",), programs.library(programs.PICKLE)),
        "library: a banned expression that backtracks": (
            ("quick",),
            programs.library(programs.BANNED),
        ),
        "library: bits flipped in a prefix file": (("0 taken",), programs.library(programs.FLIPS)),
        "library: a prefix file without a name": (
            ("LoadError", "OptionError", "SaveError"),
            programs.library(programs.NO_NAME),
        ),
    }
    cases = [Case(name, wanted, run) for name, (wanted, run) in table.items()]
    return [
        *cases,
        Case(
            "256 descriptors and 600 connections",
            ("200, little",),
            clients.flooded,
            descriptors=256,
        ),
        Case("signals again while it stops", ("exit 0",), clients.stopped_twice, arguments=()),
        Case("rebinding of 0.0.0.0 without a key", ("4",), clients.rebound, ("--host", "0.0.0.0")),
    ]
