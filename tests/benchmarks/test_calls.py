"""Python calls that a token costs do not rise. Every machine counts the same."""

from __future__ import annotations

from collections.abc import Generator

from benchmarks import calls

from tests.fakes.paces import Still

CEILINGS = {
    "a stream": 56,
    "a stream, default drafts": 77,
    "4 rows": 41,
    "4 rows, a schema": 66,
    "4 rows, a schema, default drafts": 137,
    "1 rows": 70,
    "8 rows": 35,
    "32 rows": 30,
    "48 layers, a stream": 55,
    "48 layers, 4 rows of different length": 54,
}
"""Calls a token: what was measured, and some 5 %. Here drafts pay at every step, so a schema costs
more than in ``scripts/bench calls``, where they pause. Lower them with what they count."""


def test_no_token_costs_more_calls_than_before() -> None:
    counts = {}
    for name, case, _, _ in calls.cases():
        case.lm.runtime.pace = Still()  # so that what is drafted does not follow the clock
        each = 40 if "drafts" in name or "schema" in name else 12
        counts[name] = calls.count(case.ours(), case.rows, each=each)
    assert counts.keys() == CEILINGS.keys()
    over = {
        name: (round(found.calls, 1), found.most[:8])
        for name, found in counts.items()
        if found.calls > CEILINGS[name]
    }
    assert not over


def test_only_calls_of_the_package_are_counted() -> None:
    def tokens() -> Generator[int, None, None]:
        while True:
            yield len(["a", "c"])

    assert calls.count(tokens(), 1, __file__).calls == 1
    assert calls.count(tokens(), 1).calls == 0
