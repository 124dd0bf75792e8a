from __future__ import annotations

from collections.abc import Sequence

import pytest

from mlxgen.errors import DeadEndError, FilterError, OptionError
from mlxgen.filters import Allow

from .helpers import allowed, alphabet, byte_level, constrained, ordinary

END = min(alphabet().eos)


def alternating(tokens: Sequence[int]) -> list[int] | None:
    return None if len(tokens) % 3 == 2 else [65 + len(tokens) % 2]


def test_a_function_says_what_is_allowed_and_none_means_everything() -> None:
    constraint = constrained(Allow(alternating))
    assert allowed(constraint) == {65}
    constraint.advance(65)
    assert allowed(constraint) == {66}
    constraint.advance(66)
    assert constraint.mask() is None
    constraint.advance(3)
    assert allowed(constraint) == {66}
    constraint.rewind(1)
    assert allowed(constraint) == {66}


def test_tokens_that_are_not_allowed_are_refused() -> None:
    constraint = constrained(Allow(alternating))
    with pytest.raises(FilterError, match="does not allow token 66"):
        constraint.advance(66)
    assert len(constraint) == 0


def test_the_text_may_end_where_everything_or_an_end_token_is_allowed() -> None:
    constraint = constrained(Allow(lambda tokens: [65, END] if tokens else [65]))
    assert not constraint.can_end() and allowed(constraint) == {65}
    constraint.advance(65)
    assert constraint.can_end() and allowed(constraint) == {65, END}
    assert constrained(Allow(lambda tokens: None)).can_end()
    finished = constrained(Allow(lambda tokens: {END}))
    assert finished.ended() and allowed(finished) == {END}
    two_ends = constrained(Allow(lambda tokens: [max(byte_level().eos)]), vocabulary=byte_level())
    assert allowed(two_ends) == byte_level().eos


def test_a_second_function_may_decide_about_the_end() -> None:
    constraint = constrained(Allow(lambda tokens: None, can_end=lambda tokens: len(tokens) > 1))
    assert END not in allowed(constraint)
    constraint.advance(1)
    assert END not in allowed(constraint)
    constraint.advance(1)
    assert constraint.mask() is None


def test_the_function_is_asked_once_for_a_position() -> None:
    asked: list[tuple[int, ...]] = []

    def function(tokens: Sequence[int]) -> list[int]:
        asked.append(tuple(tokens))
        return [65, 66]

    constraint = constrained(Allow(function))
    for token in (65, 66):
        constraint.mask()
        constraint.can_end()
        constraint.advance(token)
    assert asked == [(), (65,)]


def test_forks_are_independent() -> None:
    constraint = constrained(Allow(alternating))
    constraint.advance(65)
    twin = constraint.fork()
    twin.advance(66)
    assert ordinary(constraint) == {66}


def test_a_function_that_fails_or_returns_nonsense_is_named() -> None:
    def failing(tokens: Sequence[int]) -> list[int]:
        raise KeyError("x")

    with pytest.raises(FilterError, match=r"failing failed: KeyError"):
        constrained(Allow(failing)).mask()
    with pytest.raises(FilterError, match=r"allowed token 5000; expected ids from 0"):
        constrained(Allow(lambda tokens: [5000])).mask()
    with pytest.raises(DeadEndError, match="Allow"):
        constrained(Allow(lambda tokens: [])).mask()
    with pytest.raises(OptionError, match="expected a function"):
        Allow([1, 2])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="can_end"):
        Allow(alternating, can_end=True)  # type: ignore[arg-type]
