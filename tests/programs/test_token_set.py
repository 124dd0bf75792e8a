"""Sets of tokens against Python's own sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen import Branch, OptionError, TokenSet
from tests.fakes.controllers import Recited, finish
from tests.fakes.speaking import PROMPT
from tests.programs.helpers import letters

SIZES = st.sampled_from([1, 31, 32, 33, 50])


@given(size=SIZES, data=st.data())
def test_a_token_set_is_what_a_set_is(size: int, data: st.DataObject) -> None:
    ids = st.sets(st.integers(0, size - 1))
    one, two = data.draw(ids), data.draw(ids)
    first, second = TokenSet(one, size), TokenSet(two, size)
    assert set(first) == one and len(first) == len(one) and bool(first) == bool(one)
    assert set(first | second) == one | two and set(first | two) == one | two
    assert set(first & second) == one & two
    assert set(first - second) == one - two
    assert set(~first) == set(range(size)) - one
    assert ~~first == first and hash(~~first) == hash(first)
    assert (first == second) == (one == two)
    assert all((token in first) == (token in one) for token in range(-1, 70))


def test_everything_and_nothing() -> None:
    assert set(TokenSet.everything(40)) == set(range(40))
    assert not TokenSet.nothing(40) and repr(TokenSet.nothing(40)) == "<TokenSet of 0 of 40 tokens>"


def test_tokens_out_of_range_and_other_sizes_are_refused() -> None:
    for wrong in ([40], [-1], [3, 41]):
        with pytest.raises(OptionError, match="expected token ids from 0 to 39"):
            TokenSet(wrong, 40)
    with pytest.raises(OptionError, match="do not mix"):
        TokenSet([1], 40) | TokenSet([1], 41)


def test_a_token_set_is_a_mask_as_it_is() -> None:
    tokens = TokenSet([3, 33], 40)
    with pytest.raises(ValueError, match="read-only"):
        tokens.words[0] = 1
    speaker = letters()
    mask = TokenSet(b"x", speaker.lm.vocab_size)
    assert finish(speaker.lm.control(PROMPT, Recited([Branch(sample_mask=mask)], []))) == {(): "x"}
