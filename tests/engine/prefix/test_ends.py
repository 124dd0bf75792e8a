"""Which places of a prompt are worth a snapshot."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mlxgen.engine.prefix.blocks import LEAST, PARTED, SPACING, ahead, places_of, spacing_of

MESSAGES = st.lists(st.integers(0, 20_000), unique=True).map(sorted)


def test_the_ends_of_the_system_prompt_and_of_some_messages_are_places() -> None:
    assert places_of([0, 3000, 3100, 3200, 3300], 3310, SPACING) == [3000, 3200, 3300, 3310]
    assert places_of([4, 100], 120, SPACING) == [100, 120]
    assert places_of([], 120, SPACING) == [120]
    spaced = [100, 700, 1300, 1900, 2500]
    assert places_of(range(100, 3000, 100), 3000, SPACING) == [*spaced, 2800, 2900, 3000]


@given(MESSAGES, st.integers(SPACING, 4096), st.integers(0, 30))
def test_prompts_that_begin_alike_share_their_places(
    messages: list[int], spacing: int, more: int
) -> None:
    longer = [*messages, *(30_000 + 700 * i for i in range(more))]
    one = set(places_of(messages, 25_000, spacing)[:-3])
    assert one <= set(places_of(longer, 60_000, spacing))


def test_places_are_further_apart_where_a_snapshot_is_large() -> None:
    assert spacing_of(3_000_000, 24_000) == SPACING
    assert spacing_of(75_000_000, 24_000) == 3125
    assert spacing_of(400_000_000, 24_000) == 4096
    assert spacing_of(400_000_000, 0) == SPACING


def test_what_is_new_has_places_and_where_a_prompt_parts_from_what_is_known() -> None:
    assert ahead([100, 900, 1500, 1505], 0, 0) == [100, 900, 1500]
    assert ahead([100, 900, 1500, 1505], 900, 900) == [1500]
    assert ahead([100, 900, 1500, 1505], 1490, 1490) == []
    assert ahead([100, 1500], 100, 700) == [700, 1500]
    assert ahead([100, 1500], 100, 100 + PARTED - 1) == [1500]
    assert ahead([100, 1500], 100, 1495) == [1495]


@given(MESSAGES, st.integers(0, 20_000), st.integers(0, 20_000))
def test_places_are_never_close_to_one_another(messages: list[int], held: int, more: int) -> None:
    places = [held, *ahead(places_of(messages, 20_000, SPACING), held, held + more)]
    assert all(b - a >= LEAST for a, b in pairwise(places))
