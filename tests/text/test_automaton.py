from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.text import Automaton

from ..effort import tries

PATTERNS = st.lists(st.text("ab", min_size=1, max_size=6), max_size=8)


@given(PATTERNS, st.text("abc", max_size=20))
@settings(max_examples=tries(300))
def test_state_equals_the_plain_definition_after_every_symbol(
    patterns: list[str], text: str
) -> None:
    automaton: Automaton[str] = Automaton(patterns)
    state = automaton.root
    for end in range(1, len(text) + 1):
        state = automaton.step(state, text[end - 1])
        seen = text[:end]
        starts = {pattern[:n] for pattern in patterns for n in range(len(pattern) + 1)} | {""}
        assert state.depth == max(len(s) for s in starts if seen.endswith(s))
        ending = [pattern for pattern in patterns if seen.endswith(pattern)]
        index = state.longest
        assert (None if index is None else patterns[index]) == max(ending, key=len, default=None)


def test_a_state_is_the_same_whoever_expanded_it() -> None:
    automaton: Automaton[str] = Automaton(["abcd", "bcx", "c"])
    first = automaton.root
    for symbol in "abc":
        first = automaton.step(first, symbol)
    second = automaton.root
    for symbol in "xxabc":
        second = automaton.step(second, symbol)
    assert first is second
    assert first.longest == 2


def test_symbols_may_be_anything_hashable() -> None:
    automaton: Automaton[int | None] = Automaton([(1, 2, 3), (3,), [2, None]])
    state = automaton.root
    for symbol in (1, 2):
        state = automaton.step(state, symbol)
    assert state.depth == 2
    assert automaton.step(state, 3).longest == 0
    assert automaton.step(state, None).longest == 2


def test_of_equal_patterns_the_first_is_named() -> None:
    automaton: Automaton[str] = Automaton(["ab", "ab"])
    assert automaton.step(automaton.step(automaton.root, "a"), "b").longest == 0


def test_an_empty_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        Automaton(["a", ""])


def test_all_ends_of_a_long_pattern_need_no_deep_recursion() -> None:
    long = "".join(random.Random(1).choices("ab", k=300))
    automaton: Automaton[str] = Automaton([long[start:] for start in range(len(long))])
    state = automaton.root
    for symbol in long:
        state = automaton.step(state, symbol)
    assert state.depth == len(long)
    assert state.longest == 0


def test_the_work_per_symbol_does_not_grow_with_the_number_of_patterns() -> None:
    """Counted by the states that exist: those near the text, not those of all patterns."""
    choose = random.Random(2)
    patterns = ["".join(choose.choices("abcdefghij", k=10)) for _ in range(20_000)]
    automaton: Automaton[str] = Automaton(patterns)
    state = automaton.root
    for symbol in "zzabczz":
        state = automaton.step(state, symbol)

    def count(at: object) -> int:
        children = getattr(at, "children", None) or {}
        return 1 + sum(count(child) for child in children.values())

    assert count(automaton.root) < 200
