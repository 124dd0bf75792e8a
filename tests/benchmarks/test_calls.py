"""Python calls that a token costs do not rise. Every machine counts the same."""

from __future__ import annotations

from collections.abc import Generator

from benchmarks import calls

from tests.fakes.paces import Still


def test_no_token_costs_more_calls_than_before() -> None:
    over = {}
    for name, case, _, most, _ in calls.cases():
        case.lm.runtime.pace = Still()  # so that what is drafted does not follow the clock
        each = 40 if "drafts" in name or "schema" in name else 12
        found = calls.count(case.ours(), case.rows, each=each)
        if found.calls > most:  # lower what is allowed with what is counted
            over[name] = round(found.calls, 1), found.most[:8]
    assert not over


def test_only_calls_of_the_package_are_counted() -> None:
    def tokens() -> Generator[int, None, None]:
        while True:
            yield len(["a", "c"])

    assert calls.count(tokens(), 1, __file__).calls == 1
    assert calls.count(tokens(), 1).calls == 0
