"""Figures are rows with their targets, and two runs can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks import kit, servers, serving
from benchmarks.kit import Figure, at_least, at_most


def test_a_figure_meets_its_target_or_misses_it() -> None:
    spread = kit.Spread(0.9, 0.8, 1.1)
    assert [at_least("a", found, 1.0).met for found in (spread, 1.0)] == [False, True]
    assert [at_most("a", found, 2.0).met for found in (2.0, 2.1)] == [True, False]


def test_a_peer_that_fails_is_a_row() -> None:
    def failing() -> Iterator[Figure]:
        yield Figure("first", "1")
        raise RuntimeError("the peer timed out")

    found = list(kit.guarded("serving", failing()))
    assert [each.what for each in found] == ["first", "serving"]
    assert "the peer timed out" in found[1].found and found[1].met is None


def test_two_runs_are_compared_by_their_values(tmp_path: Path) -> None:
    paths = tmp_path / "a.json", tmp_path / "b.json"
    for path, value in zip(paths, (200.0, 150.0), strict=True):
        kit.save(path, {"calls": [at_most("a stream", value, 60), Figure("other", "x")]})
    (table,) = kit.compared(*paths)
    cells = [list(column.cells) for column in table.columns]
    assert cells == [["a stream", "other"], ["200", "x"], ["150", "x"], ["-25.0 %", ""]]


def test_each_side_is_timed_first_half_of_the_time() -> None:
    order = []

    def work(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    found = kit.compare(lambda: work("ours", 1.0), lambda: work("theirs", 2.0), 2)
    assert found.ratio.median == 2.0
    assert order == ["ours", "theirs", "ours", "theirs", "theirs", "ours"]


def test_a_server_that_died_is_started_again_once_however_many_clients_saw_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts: Counter[str] = Counter()

    class Fake:
        def __init__(self, name: str, arguments: Sequence[str] = ()) -> None:
            self.name = name

        def __enter__(self) -> Fake:
            self.start()
            return self

        def __exit__(self, *_: object) -> None: ...

        def start(self) -> None:
            starts[self.name] += 1

        def stop(self) -> None: ...

        def answers(self) -> bool:
            return self.name == "mlxgen" or starts[self.name] > 1

        def ask(self, body: object) -> servers.Asked:
            if not self.answers():
                raise TimeoutError("timed out")
            return servers.Asked(200, 0.1, [{}])

    monkeypatch.setattr(serving, "Server", Fake)
    first, *others = serving.figures(2)
    assert "mlx_lm failed a good request" in first.found and first.met is None
    assert len(others) == 6 and not any("failed" in other.found for other in others)
    assert starts == {"mlxgen": 1, "mlx_lm": 2}


def test_streams_and_whole_answers_are_put_together_alike() -> None:
    calls: list[dict[str, Any]] = [
        {"index": 0, "id": "c", "function": {"name": "read", "arguments": "{"}},
        {"index": 0, "function": {"arguments": "}"}},
    ]
    deltas = [
        {"role": "assistant", "content": ""},
        {"reasoning": "Let"},
        {"reasoning_content": " be"},
        {"content": "I see"},
        *({"tool_calls": [call]} for call in calls),
    ]
    usage = {"usage": {"prompt_tokens": 3}}
    events = [{"choices": [{"index": 0, "delta": each}]} for each in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    whole: dict[str, Any] = {"content": "I see", "reasoning_content": "Let be", "role": "assistant"}
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    whole["tool_calls"] = [call]
    choice = {"index": 0, "message": whole, "finish_reason": "tool_calls"}
    found = servers.folded([{"choices": [choice], **usage}])
    assert found == ([whole], ["tool_calls"], usage["usage"])
    assert servers.folded([*events, {"choices": [], **usage}]) == found
