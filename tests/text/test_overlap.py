from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.text import sequence_overlap

from ..effort import tries

SHORT = st.text("ab", max_size=12)


@pytest.mark.parametrize(
    ("s1", "s2", "overlap"),
    [
        ("a stop", "topple", 3),
        ("abc", "abc", 3),
        ("xabc", "abc", 3),
        ("abc", "abcd", 3),
        ("abcx", "abc", 0),
        ("", "abc", 0),
        ("abc", "", 0),
        ("aaa", "aa", 2),
        ("abab", "ababx", 4),
        ([1, 2, 3], [2, 3, 4], 2),
        ((1, 2), [2, 5], 1),
        (b"\xe4\xb8", b"\xb8\xad", 1),
    ],
)
def test_an_overlap_is_the_longest_suffix_that_is_a_prefix_of_the_second(
    s1: object, s2: object, overlap: int
) -> None:
    assert sequence_overlap(s1, s2) == overlap  # type: ignore[arg-type]


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
