"""Where three tokens came last, whatever came and was taken back since."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxgen.engine.drafts.lookup import RUN, Places, packed

TOKENS = st.lists(st.integers(-2, 3), max_size=12)


def naive(tokens: list[int], run: list[int]) -> int:
    """The latest place after a run, none of whose tokens and none of the next one is negative."""
    for place in range(len(tokens) - 1, RUN - 1, -1):
        if tokens[place - RUN : place] == run and min(*run, tokens[place]) >= 0:
            return place
    return -1


@given(st.lists(st.tuples(TOKENS, st.integers(0, 30)), max_size=6), TOKENS)
def test_it_finds_the_latest_place_in_what_is_left(
    moves: list[tuple[list[int], int]], more: list[int]
) -> None:
    places, tokens = Places(), list[int]()
    for new, to in moves:
        places.extend(new)
        tokens += new
        places.cut(to)
        del tokens[to:]
    twin = places.fork()
    twin.extend(more)
    for held, known in ((places, tokens), (twin, tokens + more)):
        assert len(held.tokens) == len(known)
        for start in range(len(known)):
            run = known[start : start + RUN]
            if len(run) == RUN and min(run) >= 0:
                assert held.latest.get(packed(run), -1) == naive(known, run)
        assert held.last == packed(known[-RUN:])
