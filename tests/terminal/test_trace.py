"""Timelines in Chrome's trace event format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlxgen
from mlxgen.engine import Moment
from mlxgen.generate import main
from mlxgen.terminal.trace import Trace

from ..fakes.chatting import Chatter

Events = list[dict[str, Any]]


@contextmanager
def traced(lm: mlxgen.LanguageModel, path: Path) -> Iterator[Events]:
    """A context in which a model is traced to a file; its events come with the end."""
    found: Events = []
    with Trace(path, lm.name) as lm.watch:
        yield found
    found += read(path)


def read(path: Path) -> Events:
    """The events of a file, every one of which has what the format demands."""
    events: Events = json.loads(path.read_text())
    for event in events:
        assert event["name"] and event["pid"] == 1
        assert event["ph"] in "MXiC"
        if event["ph"] != "M":
            assert isinstance(event["ts"], int) and event["ts"] >= 0 and event["tid"] > 0
        if event["ph"] == "X":
            assert isinstance(event["dur"], int) and event["dur"] >= 0
    check_nesting(events)
    return events


def check_nesting(events: Events) -> None:
    """What lasts on a track is within what began before it, or after that."""
    tracks = names(events)
    for thread in tracks:
        spans = [event for event in events if event["ph"] == "X" and event["tid"] == thread]
        open_ends: list[int] = []
        for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
            end = span["ts"] + span["dur"]
            while open_ends and open_ends[-1] <= span["ts"]:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], (tracks[thread], span)
            open_ends.append(end)


def names(events: Events) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in of(events, "thread_name")}


def of(events: Iterable[dict[str, Any]], name: str) -> Events:
    return [event for event in events if event["name"] == name]


def test_a_run_has_its_passes_tokens_and_verbs_on_named_tracks(tmp_path: Path) -> None:
    lm = Chatter(lambda message: "abcdef").lm
    prompt = [{"role": "user", "content": "x"}]
    with traced(lm, tmp_path / "trace") as found:
        lm.generate(prompt, draft="off")
    assert of(found, "process_name")[0]["args"]["name"] == lm.name
    tracks = sorted(names(found).items())
    assert [name for _, name in tracks[:2]] == ["host", "device"]
    assert re.fullmatch(r"request \d+", tracks[2][1])
    assert {"step", "plan", "draw", "wait", "accept", "masks"} <= {e["name"] for e in found}
    (begins,) = of(found, "begins")
    prefilled = sum(each["args"]["tokens"] for each in of(found, "prefill"))
    assert prefilled == begins["args"]["prompt"]
    tokens = of(found, "token")
    assert "".join(token["args"]["text"] for token in tokens) == "abcdef"
    assert tokens[-1]["args"]["ends"] == "stop"
    assert [e["args"]["tokens"] for e in of(found, "delivered tokens")] == list(range(1, 8))
    assert sum(each["args"]["tokens"] for each in of(found, "pass")) >= 6


def test_drafts_say_who_made_them_and_what_stood(tmp_path: Path) -> None:
    lm = Chatter(lambda message: "ab" * 20).lm
    prompt = [{"role": "user", "content": "x"}]
    with traced(lm, tmp_path / "trace") as found:
        usage = lm.generate(prompt, draft="ngram").usage
    drafts = of(found, "drafts")
    assert {each["args"]["drafter"] for each in drafts} == {"text"}
    stood = sum(each["args"]["stood"] for each in drafts)
    assert stood == usage.accepted_draft_tokens > 0
    assert sum(each["args"]["proposed"] for each in drafts) == usage.drafted_tokens
    assert all(each["args"]["tokens"] for each in of(found, "draft"))


def test_what_is_taken_back_says_by_whom(tmp_path: Path) -> None:
    lm, prompt = Chatter(lambda message: "a fox ran").lm, [{"role": "user", "content": "x"}]
    with (
        traced(lm, tmp_path / "trace") as found,
        lm.stream(prompt, banned=["fox"], draft="off") as stream,
    ):
        for _ in range(5):
            next(stream)
        stream.rewind(tokens=2)
        next(stream)
    rewinds = of(found, "rewind")
    assert {each["args"]["by"] for each in rewinds} == {"step", "caller"}
    assert all(each["args"]["tokens"] >= 2 for each in rewinds if each["args"]["by"] == "caller")


def test_moments_that_end_together_do_so_in_the_file(tmp_path: Path) -> None:
    with Trace(tmp_path / "t") as trace:
        trace(Moment("host", "inner", 1.00000049, 0.00000102, {}))
        trace(Moment("host", "outer", 1.0, 0.00000151, {}))
    check_nesting(json.loads((tmp_path / "t").read_text()))


def test_the_command_line_writes_a_timeline(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert main(["--trace", str(path), "--max-tokens", "3", "--raw", "Once"]) == 0
    found = read(path)
    assert of(found, "process_name")[0]["args"]["name"] == "mlxgen: demo"
    assert len(of(found, "token")) == 3
