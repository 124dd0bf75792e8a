"""Python calls that a generated token costs, beside mlx-lm's: the one figure of speed that no busy
machine disturbs.

Counted are the functions of one package, from the public API alone. Built-in functions and those of
other packages do not count, nor does what is done once for a generation.

    python -m scripts.benchmarks.calls ARGUMENTS OF THE SERVER    a server that counts its calls
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import httpx
import mlx_lm

import mlxgen

from .batch import records
from .kit import Figure, at_most, ours, ours_together, prompt_of, theirs, theirs_together, tiny

WARM = 12  # tokens of each row before the count begins
TOKENS = 40  # of each row that are counted
RAGGED = (8, 25, 60, 120)  # tokens of the prompts of a batch of different lengths
PROMPT = "Once upon a time there was a"
OURS = str(Path(mlxgen.__file__).parent)
THEIRS = str(Path(mlx_lm.__file__).parent)


class Case(NamedTuple):
    """What is counted: the tokens of ``rows`` sequences, given as they come."""

    rows: int
    run: Callable[[], Iterator[object]]
    package: str = OURS


class Count(NamedTuple):
    """Calls a token, and the functions that were called most."""

    calls: float
    functions: int
    most: Sequence[tuple[str, float]]

    def __str__(self) -> str:
        return f"{self.calls:.0f} calls of {self.functions} functions"


def figures() -> Iterator[Figure]:
    for name, case, peer, aim in cases():
        found = count(case)
        text = f"{found}; mlx-lm {count(peer)}" if peer is not None else str(found)
        yield at_most(f"{name}: Python calls of mlxgen's a token", found.calls, aim, text)
    before, calls = served()
    what = "a streamed chat with a tool: functions of server/ and chat/ until the engine has it"
    yield at_most(what, before, 100)
    yield Figure("the same: calls a token, of all threads", f"{calls:.0f}", value=calls)


def count(case: Case) -> Count:
    """The calls of a case for each token, after the first ones of every row."""
    tokens = iter(case.run())
    for _ in range(WARM * case.rows):
        next(tokens)
    calls: Counter[Any] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(case.package):
            calls[frame.f_code] += 1

    given, wanted = 0, TOKENS * case.rows
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        while given < wanted and next(tokens, None) is not None:
            given += 1
    finally:
        sys.setprofile(before)
    if hasattr(tokens, "close"):
        tokens.close()
    start = len(case.package) + 1
    most = [
        (f"{code.co_filename[start:]}:{code.co_qualname}", number / given)
        for code, number in calls.most_common()
    ]
    return Count(sum(calls.values()) / given, len(calls), most)


def stream(lm: mlxgen.LanguageModel, draft: str = "off") -> Case:
    """One stream."""
    return Case(1, lambda: ours(lm, PROMPT, 120, draft=draft))


def batch(
    lm: mlxgen.LanguageModel,
    rows: int,
    *,
    schema: bool = False,
    draft: str = "off",
    lengths: Sequence[int] = (8,),
) -> Case:
    """A batch of prompts of these lengths in turn; with ``schema``, each is held to one."""
    held: dict[str, Any] = {"filters": [records(0, 9)], "ignore_eos": False} if schema else {}
    prompts = prompts_of(rows, lengths)
    return Case(rows, lambda: ours_together(lm, prompts, 120, draft=draft, **held))


def peer_stream(lm: mlxgen.LanguageModel) -> Case:
    """mlx-lm's stream of the same model."""
    return Case(1, lambda: theirs(lm, PROMPT, 120), THEIRS)


def peer_batch(lm: mlxgen.LanguageModel, rows: int, lengths: Sequence[int] = (8,)) -> Case:
    """mlx-lm's batch of the same prompts."""
    prompts = prompts_of(rows, lengths)
    return Case(rows, lambda: theirs_together(lm.model, prompts, 120), THEIRS)


def prompts_of(rows: int, lengths: Sequence[int]) -> list[list[int]]:
    return [prompt_of(lengths[i % len(lengths)], i) for i in range(rows)]


def cases() -> Iterator[tuple[str, Case, Case | None, int]]:
    """What is measured: its name, ours, mlx-lm's, and the calls a token that are aimed at."""
    lm = mlxgen.load()
    yield "a stream", stream(lm), peer_stream(lm), 60
    yield "a stream, default drafts", stream(lm, "auto"), None, 80
    yield "4 rows", batch(lm, 4), peer_batch(lm, 4), 50
    yield "4 rows, a schema", batch(lm, 4, schema=True), None, 90
    yield "4 rows, a schema, default drafts", batch(lm, 4, schema=True, draft="auto"), None, 80
    for rows, aim in ((1, 100), (8, 50), (32, 35)):
        yield f"{rows} rows", batch(lm, rows), peer_batch(lm, rows), aim
    deep = tiny("llama", layers=48)
    yield "48 layers, a stream", stream(deep), peer_stream(deep), 110
    both = batch(deep, 4, lengths=RAGGED), peer_batch(deep, 4, RAGGED)
    yield "48 layers, 4 rows of different length", *both, 100


# ---- a server ----------------------------------------------------------------------------------


def served() -> tuple[int, float]:
    """Of a streamed chat: the functions of ``server/`` and ``chat/`` until the engine has it, and
    the calls for each token, of all threads."""
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
            it.stdin.write("\n")
            it.stdin.flush()
            found.append(json.loads(it.stdout.readline()))
        it.terminate()
    _, short, long = found
    return short["before"], (long["calls"] - short["calls"]) / TOKENS


def serve(arguments: Sequence[str]) -> int:
    """Serve, and tell what was called since it was told last, for each line of standard input."""
    from mlxgen.engine.scheduling.scheduler import Scheduler
    from mlxgen.server.__main__ import main

    calls: Counter[Any] = Counter()
    before: set[Any] = set()
    reached = False  # the engine has the request

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(OURS):
            return
        nonlocal reached
        reached = reached or frame.f_code is Scheduler.submit.__code__
        if not reached and name.startswith((f"{OURS}/server/", f"{OURS}/chat/")):
            before.add(frame.f_code)
        calls[frame.f_code] += 1

    def tell() -> None:
        nonlocal reached
        for _ in sys.stdin:
            print(json.dumps({"calls": calls.total(), "before": len(before)}), flush=True)
            calls.clear()
            before.clear()
            reached = False

    threading.Thread(target=tell, daemon=True).start()
    threading.setprofile(note)
    sys.setprofile(note)
    return main(arguments)


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
