from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from mlxgen.tokens import in_common

TOKENS = st.lists(st.integers(0, 1), max_size=9)


@given(one=TOKENS, other=TOKENS, shared=TOKENS)
def test_what_two_sequences_have_in_common_is_their_longest_common_prefix(
    one: list[int], other: list[int], shared: list[int]
) -> None:
    first, second = [*shared, *one], [*shared, *other]
    pairs = zip(first, second, strict=False)
    length = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    assert in_common(first, second) == length
    assert in_common(bytes(first), bytes(second)) == length
