"""Patterns in a growing text, and how far the end of one sequence is the start of another."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.text import Patterns, sequence_overlap

from ..effort import tries

PATTERNS = st.lists(st.text("ab", min_size=1, max_size=6), max_size=8)
SHORT = st.text("ab", max_size=12)


@given(PATTERNS, st.text("abc", max_size=20))
@settings(max_examples=tries(300))
def test_a_state_is_the_longest_end_that_begins_a_pattern(patterns: list[str], text: str) -> None:
    search: Patterns[str] = Patterns(patterns)
    runs: Patterns[tuple[int, ...]] = Patterns([tuple(map(ord, each)) for each in patterns])
    state, run = "", tuple[int, ...]()
    starts = {pattern[:n] for pattern in patterns for n in range(len(pattern) + 1)} | {""}
    for end, symbol in enumerate(text, 1):
        state, run = search.step(state, symbol), runs.step(run, (ord(symbol),))
        assert state == max((s for s in starts if text[:end].endswith(s)), key=len)
        ending = [pattern for pattern in patterns if text[:end].endswith(pattern)]
        assert search.completed(state) == max(ending, key=len, default=None)
        assert run == tuple(map(ord, state))


def test_an_empty_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        Patterns(["a", ""])


@given(SHORT, SHORT)
@settings(max_examples=tries(200))
def test_overlap_equals_trying_every_length(s1: str, s2: str) -> None:
    plain = max(n for n in range(min(len(s1), len(s2)) + 1) if s1.endswith(s2[:n]))
    assert sequence_overlap(s1, s2) == plain
    assert sequence_overlap(list(s1), tuple(s2)) == plain


def test_a_long_repetitive_overlap_takes_linear_work() -> None:
    class Counted:
        compared = 0

        def __init__(self, value: str) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return isinstance(other, Counted) and self.value == other.value

        __hash__ = None  # type: ignore[assignment]

    size = 500
    s1 = [Counted("a") for _ in range(size)]
    s2 = [*(Counted("a") for _ in range(size - 1)), Counted("b")]
    assert sequence_overlap(s1, s2) == size - 1
    assert Counted.compared < 10 * size
