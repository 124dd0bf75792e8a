"""Python calls per generated token, compared with mlx-lm's: the only measure of speed that a busy
machine does not disturb.

Only functions of one package are counted, through its public API. Built-in functions, other
packages, and work done once per generation do not count.

    python -m scripts.benchmarks.calls ARGUMENTS OF THE SERVER    a server that counts its calls
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import httpx
import mlx_lm

import mlxgen

from . import kit
from .batch import records

WARM = 12  # tokens of each row before the count begins
TOKENS = 40  # of each row that are counted
OURS = f"{Path(mlxgen.__file__).parent}/"
THEIRS = f"{Path(mlx_lm.__file__).parent}/"


class Counted(NamedTuple):
    """A case; ``peer``: whether mlx-lm has an equivalent. ``aim`` is the target of calls per token,
    and ``most`` the limit in the tests: what was measured, and some 5 %."""

    name: str
    case: kit.Case
    aim: int
    most: int
    peer: bool = True


def cases() -> Iterator[Counted]:
    """The cases. In the tests, drafts pay at every step, so a schema costs more there than in
    ``figures``, where they pause."""
    lm, deep = mlxgen.load(), kit.tiny("llama", layers=48)

    def stream(lm: mlxgen.LanguageModel, draft: str = "off") -> kit.Case:
        return kit.Case(lm, "Once upon a time there was a", 120, [{"draft": draft}])

    def batch(lm: mlxgen.LanguageModel, *lengths: int, **options: Any) -> kit.Case:
        prompts = [kit.prompt_of(length, i) for i, length in enumerate(lengths)]
        return kit.Case(lm, prompts, 120, [options])

    held = {"filters": [records(0, 9)], "ignore_eos": False}
    four = [8] * 4
    yield Counted("a stream", stream(lm), 60, 56)
    yield Counted("a stream, default drafts", stream(lm, "auto"), 80, 77, peer=False)
    yield Counted("4 rows", batch(lm, *four), 50, 41)
    yield Counted("4 rows, a schema", batch(lm, *four, **held), 90, 66, peer=False)
    drafted = batch(lm, *four, **held, draft="auto")
    yield Counted("4 rows, a schema, default drafts", drafted, 80, 137, peer=False)
    for rows, aim, most in ((1, 100, 70), (8, 50, 35), (32, 35, 30)):
        yield Counted(f"{rows} rows", batch(lm, *[8] * rows), aim, most)
    yield Counted("48 layers, a stream", stream(deep), 110, 55)
    uneven = batch(deep, 8, 25, 60, 120)
    yield Counted("48 layers, 4 rows of different length", uneven, 100, 54)


def figures() -> Iterator[kit.Figure]:
    for name, case, aim, _, peer in cases():
        found = count(case.ours(), case.rows)
        text = str(found)
        if peer:
            text += f"; mlx-lm {count(case.theirs(), case.rows, THEIRS)}"
        yield kit.at_most(f"{name}: Python calls of mlxgen's a token", found.calls, aim, text)
    before, calls = served()
    what = "a streamed chat with a tool: functions of server/ and chat/ until the engine has it"
    yield kit.at_most(what, before, 100)
    yield kit.plain("the same: calls a token, of all threads", calls)


class Count(NamedTuple):
    """Calls per token, the number of functions, and the functions called most."""

    calls: float
    functions: int
    most: Sequence[tuple[str, float]]

    def __str__(self) -> str:
        return f"{self.calls:.0f} calls of {self.functions} functions"


def count(tokens: kit.Made, rows: int, package: str = OURS, each: int = TOKENS) -> Count:
    """The calls per token, over ``each`` tokens of each row, after the first ones."""
    calls: Counter[Any] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            calls[frame.f_code] += 1

    with closing(tokens):
        for _ in range(WARM * rows):
            next(tokens)
        given, wanted = 0, each * rows
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            while given < wanted and next(tokens, None) is not None:
                given += 1
        finally:
            sys.setprofile(before)
    most = [
        (f"{code.co_filename.removeprefix(package)}:{code.co_qualname}", number / given)
        for code, number in calls.most_common()
    ]
    return Count(calls.total() / given, len(calls), most)


# ---- a server ----------------------------------------------------------------------------------


def served() -> tuple[int, float]:
    """For a streamed chat: the number of functions of ``server/`` and ``chat/`` that run until the
    engine has the request, and the calls per token, of all threads."""
    command = [sys.executable, "-m", __spec__.name, "--port", "0", "--log-level", "warning"]
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    ask = {"messages": [{"role": "user", "content": "Tell me a story."}], "tools": [tool]}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        assert it.stdin is not None and it.stdout is not None
        url = it.stdout.readline().split("ready on ")[1].split(",")[0].strip()
        found = []
        for tokens in (WARM, WARM, WARM + TOKENS):
            body = {**ask, "stream": True, "max_tokens": tokens, "ignore_eos": True}
            httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
            print(file=it.stdin, flush=True)
            found.append(json.loads(it.stdout.readline()))
        it.terminate()
    _, short, long = found
    return short["before"], (long["calls"] - short["calls"]) / TOKENS


def serve(arguments: Sequence[str]) -> int:
    """Serve, and for each line of standard input print the calls since the last line."""
    from mlxgen.engine.scheduling.scheduler import Scheduler
    from mlxgen.server.__main__ import main

    calls: Counter[Any] = Counter()
    before: set[Any] = set()  # functions until the engine has the request
    rooms = (f"{OURS}server/", f"{OURS}chat/")

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS):
            calls[code] += 1
            if code.co_filename.startswith(rooms) and not calls[Scheduler.submit.__code__]:
                before.add(code)

    def tell() -> None:
        for _ in sys.stdin:
            print(json.dumps({"calls": calls.total(), "before": len(before)}), flush=True)
            calls.clear()
            before.clear()

    threading.Thread(target=tell, daemon=True).start()
    threading.setprofile(note)
    sys.setprofile(note)
    return main(arguments)


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
