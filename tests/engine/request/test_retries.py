"""What repeated draws depend on, compared with the story that it sums up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import Rejected
from mlxgen.engine.request.retries import DRAWS_FOR_BANS, Retries

from ...effort import tries

places = st.integers(0, 7)
tokens = st.integers(0, 3)
rejected = tokens.map(lambda token: Rejected(token, "hook"))
spans = st.tuples(places, st.integers(0, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))
decisions = st.one_of(
    st.tuples(st.just("ban"), st.tuples(places, tokens)),
    st.tuples(st.just("reject"), st.tuples(places, rejected)),
    st.tuples(st.just("ask"), st.tuples(places, st.frozensets(tokens), st.none() | st.just(0.5))),
)
deeds = st.one_of(
    decisions,
    st.tuples(st.just("admit_all"), st.just(())),
    st.tuples(st.just("accepted"), st.just(())),
    st.tuples(st.just("rewind"), st.tuples(places)),
    st.tuples(st.just("back"), spans),
    st.tuples(st.just("back_for"), spans),
)
stories = st.lists(deeds, max_size=16)


def told(story: Sequence[tuple[str, Any]], position: int) -> dict[str, Any]:
    """What holds for a draw at ``position``, read from the whole story."""
    attempt = agreed = asked = 0
    banned: set[int] = set()
    rejected: tuple[Rejected, ...] = ()
    wish: tuple[frozenset[int], float | None, bool] = (frozenset(), None, False)
    for deed, with_ in story:
        start = with_[0] if with_ else position
        if deed == "ban" and start == position:
            banned.add(with_[1])
        if deed == "reject" and start == position:
            rejected += (with_[1],)
        if deed == "ask":
            wish = with_[1], with_[2], wish[2]
            asked += start == position
        if deed == "admit_all":
            wish = frozenset(), wish[1], True
        if deed in ("accepted", "back", "back_for"):
            wish = frozenset(), None, False
        beyond = deed == "back_for" and position >= with_[1]  # the consumer has not seen it
        if (deed in ("rewind", "back", "back_for") and start < position) or beyond:
            banned, asked, rejected = set(), 0, ()
        if deed in ("back", "back_for") and start <= position < with_[1]:
            attempt += 1
            agreed = attempt if deed == "back_for" else agreed
        attempt = agreed if beyond else attempt
    exclude, temperature, unmet = wish
    return {
        "attempt": attempt,
        "asked": asked,
        "excluded": banned | exclude,
        "rejected": rejected,
        "temperature": temperature,
        "differs": bool(exclude) or temperature is not None,
        "unmet": unmet,
    }


def view(retries: Retries, position: int) -> dict[str, Any]:
    return {
        "attempt": retries.attempts.get(position, 0),
        "asked": retries.asked.get(position, 0),
        "excluded": retries.excluded(position),
        "rejected": retries.rejected.get(position, ()),
        "temperature": retries.temperature,
        "differs": retries.differs,
        "unmet": retries.unmet,
    }


def play(retries: Retries, story: Sequence[tuple[str, Any]]) -> Retries:
    for deed, with_ in story:
        getattr(retries, deed)(*with_)
    return retries


@settings(max_examples=tries(1200))
@given(stories, stories, stories)
def test_a_draw_depends_on_what_was_decided_since_the_text_before_it_changed(
    story: list[tuple[str, Any]], one: list[tuple[str, Any]], other: list[tuple[str, Any]]
) -> None:
    retries = play(Retries(), story)
    twin = retries.fork()
    play(retries, one)
    play(twin, other)
    for position in range(14):
        assert view(retries, position) == told([*story, *one], position)
        assert view(twin, position) == told([*story, *other], position)


@settings(max_examples=tries(100))
@given(stories, st.lists(decisions, max_size=6))
def test_a_rewind_forgets_what_was_decided_for_later_positions(
    story: list[tuple[str, Any]], later: list[tuple[str, Any]]
) -> None:
    retries = play(Retries(), [*story, ("rewind", (7,)), ("accepted", ())])
    before = [view(retries, position) for position in range(20)]
    play(retries, [(deed, (8 + with_[0], *with_[1:])) for deed, with_ in later])
    retries.rewind(7)
    retries.accepted()
    assert [view(retries, position) for position in range(20)] == before


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
