"""How far the end of one sequence is the start of another."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.text import first_mark, sequence_overlap

from ..effort import tries

SHORT = st.text("ab", max_size=12)


@given(SHORT, SHORT)
@settings(max_examples=tries(200))
def test_overlap_equals_trying_every_length(s1: str, s2: str) -> None:
    plain = max(n for n in range(min(len(s1), len(s2)) + 1) if s1.endswith(s2[:n]))
    assert sequence_overlap(s1, s2) == plain
    assert sequence_overlap(list(s1), tuple(s2)) == plain


@given(SHORT, st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
@settings(max_examples=tries(200))
def test_the_first_mark_is_the_longest_at_its_place_or_may_begin_there(
    text: str, marks: list[str]
) -> None:
    for start in range(len(text)):
        found = [mark for mark in marks if text.startswith(mark, start)]
        if found:
            assert first_mark(text, [*marks, ""]) == (start, max(found, key=len))
            return
    begun = [at for at in range(len(text)) if any(m.startswith(text[at:]) for m in marks)]
    assert first_mark(text, [*marks, ""]) == (min(begun, default=len(text)), "")


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
