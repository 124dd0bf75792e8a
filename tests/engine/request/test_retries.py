"""What repeated draws depend on, compared with the story that it sums up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import Rejected
from mlxgen.engine.request.retries import DRAWS_FOR_BANS, Decided, Retries

from ...effort import tries

places = st.integers(0, 7)
tokens = st.integers(0, 3)
rejected = tokens.map(lambda token: Rejected(token, "hook"))
spans = st.tuples(places, st.integers(0, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))
decisions = st.one_of(
    st.tuples(st.just("reject"), st.tuples(places, rejected)),
    st.tuples(st.just("ban"), st.tuples(places, rejected)),
    st.tuples(st.just("ask"), st.tuples(places, st.frozensets(tokens), st.none() | st.just(0.5))),
)
deeds = st.one_of(
    decisions,
    st.tuples(st.just("rewind"), st.tuples(places)),
    st.tuples(st.just("back"), spans),
    st.tuples(st.just("back_for"), spans),
)
stories = st.lists(deeds, max_size=16)


def told(story: Sequence[tuple[str, Any]], position: int) -> tuple[int, frozenset[int], Decided]:
    """What holds for a draw at ``position``, read from the whole story."""
    attempt = agreed = 0
    decided, wish = Decided(), frozenset[int]()
    for deed, (start, *rest) in story:
        here, seen = start == position, rest[0] if deed == "back_for" else 99
        if deed in ("reject", "ban") and here:
            banned = decided.banned | ({rest[0].token} if deed == "ban" else set())
            decided = decided._replace(rejected=(*decided.rejected, rest[0]), banned=banned)
        if deed == "ask":
            decided, wish = decided._replace(asked=decided.asked + here), rest[0]
        if deed in ("back", "back_for"):
            wish = frozenset()
        if (deed in ("rewind", "back", "back_for") and start < position) or position >= seen:
            decided = Decided()
        elif deed == "back_for" and here:
            decided = decided._replace(asked=0)
        if deed in ("back", "back_for") and start <= position < rest[0]:
            attempt += 1
            agreed = attempt if deed == "back_for" else agreed
        attempt = agreed if position >= seen else attempt
    return attempt, decided.banned | wish, decided


def play(retries: Retries, story: Sequence[tuple[str, Any]]) -> Retries:
    for deed, with_ in story:
        if deed == "ban":
            retries.reject(*with_, ban=True)
        else:
            getattr(retries, deed)(*with_)
    return retries


@settings(max_examples=tries(1200))
@given(stories, stories, stories)
def test_a_draw_depends_on_what_was_decided_since_the_text_before_it_changed(
    story: list[tuple[str, Any]], one: list[tuple[str, Any]], other: list[tuple[str, Any]]
) -> None:
    retries = play(Retries(), story)
    twin = retries.fork()
    for each, more in ((play(retries, one), one), (play(twin, other), other)):
        for position in range(14):
            found = each.attempts.get(position, 0), each.excluded(position), each.at(position)
            assert found == told([*story, *more], position)


@settings(max_examples=tries(100))
@given(st.lists(st.integers(1, 300), min_size=1, max_size=60))
def test_bans_may_spend_in_proportion_to_the_text(lengths: list[int]) -> None:
    retries = Retries()
    for count, length in enumerate(lengths, 1):
        allowance = DRAWS_FOR_BANS * (length + DRAWS_FOR_BANS)
        assert retries.spend(0, length) == (sum(lengths[:count]) <= allowance)
    while retries.spend(0, 300):
        pass
    retries.back_for(0, 300)
    assert retries.spend(0, 1), "a consumer's rewind begins anew"
