from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen.filters import allows, no_tokens, tokens_of, without_tokens, word_count, words_of

from .helpers import Fixed, Toy


@pytest.mark.parametrize(("size", "count"), [(1, 1), (31, 1), (32, 1), (33, 2), (64, 2), (65, 3)])
def test_a_row_has_exactly_the_words_that_its_bits_need(size: int, count: int) -> None:
    assert word_count(size) == len(no_tokens(size)) == len(words_of([0], size)) == count
    assert words_of([], size).dtype == np.int32


@given(st.sets(st.integers(-5, 120)), st.integers(1, 100))
def test_words_hold_exactly_the_tokens_in_range(tokens: set[int], size: int) -> None:
    row = words_of(tokens, size)
    held = {token for token in tokens if 0 <= token < size}
    assert set(tokens_of(row).tolist()) == held
    assert {token for token in range(-5, 140) if allows(row, token)} == held


@given(st.sets(st.integers(0, 69)), st.sets(st.integers(-3, 90)))
def test_tokens_are_taken_out_of_a_copy(tokens: set[int], out: set[int]) -> None:
    row = words_of(tokens, 70)
    before = row.copy()
    assert set(tokens_of(without_tokens(row, out, 70)).tolist()) == tokens - out
    assert (row == before).all()
    assert set(tokens_of(without_tokens(None, out, 70)).tolist()) == set(range(70)) - out


def test_filters_are_told_from_specifications_by_what_they_have() -> None:
    from mlxgen.filters import Regex
    from mlxgen.filters.protocol import is_filter, is_specification

    assert is_filter(Toy()) and is_filter(Fixed([1])) and not is_filter(Toy)
    assert is_specification(Regex("a")) and not is_specification(Regex)
    assert not is_filter(Regex("a")) and not is_specification(Toy())
