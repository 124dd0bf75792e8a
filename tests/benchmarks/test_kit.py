"""Figures are rows with their targets, and two runs can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import kit
from benchmarks.kit import Figure, at_least, at_most


def test_a_figure_meets_its_target_or_misses_it() -> None:
    assert [at_least("a", value, 1.0).met for value in (0.9, 1.0)] == [False, True]
    assert [at_most("a", value, 2.0).met for value in (2.0, 2.1)] == [True, False]


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
