from __future__ import annotations

import pytest

from mlxgen.errors import DeadEndError, FilterError, OptionError, RewindError
from mlxgen.filters import AllOf, Allow, Choice, JsonSchema, Regex, Replay
from mlxgen.filters.compose import Intersection

from .helpers import (
    CopyableToy,
    Fixed,
    NativeToy,
    Toy,
    accepts,
    allowed,
    alphabet,
    constrained,
    feed,
    ordinary,
    pieces,
    sentencepiece,
    state,
    takes,
)


def test_all_of_allows_what_all_allow() -> None:
    both = AllOf(Regex("[a-f]+"), Regex("[d-z]+"))
    constraint = constrained(both)
    assert pieces(constraint) == {b"d", b"e", b"f"}
    assert accepts(both, "def") and not accepts(both, "dg")
    assert accepts(AllOf(JsonSchema(True), Regex(r"\{.*")), '{"a":1}')
    assert not accepts(AllOf(JsonSchema(True), Regex(r"\{.*")), "[1]")


def test_all_of_one_is_that_one_and_of_none_is_free_text() -> None:
    assert state(constrained(AllOf(Regex("ab")))) == state(constrained(Regex("ab")))
    assert constrained(AllOf()).mask() is None


def test_all_of_nests_and_is_a_value() -> None:
    nested = AllOf(AllOf(Regex("[a-f]+")), AllOf(Regex("[d-z]+"), Allow(lambda tokens: None)))
    assert pieces(constrained(nested)) == {b"d", b"e", b"f"}
    assert AllOf(Regex("a"), Choice(["a"])) == AllOf(Regex("a"), Choice(["a"]))
    assert hash(AllOf(Regex("a"))) == hash(AllOf(Regex("a")))
    with pytest.raises(OptionError, match="AllOf: expected specifications"):
        AllOf(Regex("a"), Toy())  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="AllOf: expected specifications"):
        AllOf(Regex)  # type: ignore[arg-type]


def test_the_text_may_end_only_where_all_may() -> None:
    constraint = feed(constrained(Regex("a{1,3}"), Regex("a{2}")), "a")
    assert not constraint.can_end()
    assert feed(constraint, "a").can_end()
    assert constraint.ended()


def test_an_empty_intersection_names_the_filters_and_what_each_allows() -> None:
    constraint = constrained(Regex("a+"), Choice(["b", "c"]), Fixed(None))
    with pytest.raises(DeadEndError) as caught:
        constraint.mask()
    message = str(caught.value)
    for part in (
        "Regex(pattern='a+') allows 1",
        "options=('b', 'c')) allows 2",
        "Fixed allows all",
    ):
        assert part in message
    alone = constrained(Allow(lambda tokens: ()))
    with pytest.raises(DeadEndError, match=r"Allow\(.*allows none$"):
        alone.mask()


def test_forced_tokens_are_those_that_all_take() -> None:
    constraint = constrained(Choice(["xyzzy", "xyz."]), Regex("xyzzy|abc"))
    assert constraint.forced() == [ord("x"), ord("y"), ord("z")]
    feed(constraint, "xyz")
    assert constraint.forced() == [ord("z"), ord("y")]
    never_y = Allow(lambda tokens: [ord("x"), ord("z")])
    assert constrained(Choice(["xyz"]), never_y).forced() == [ord("x")]


def test_a_single_allowed_token_is_forced_whoever_allows_it() -> None:
    assert constrained(Fixed([31])).forced() == [31]
    assert constrained(Fixed([31, 32])).forced() == []
    assert constrained(Fixed([31], ends=True)).forced() == []
    assert constrained(Fixed(None)).forced() == []


@pytest.mark.parametrize(
    "kinds", [(Toy, NativeToy), (NativeToy, Toy), (CopyableToy, Toy, NativeToy)]
)
def test_an_advance_happens_in_every_part_or_in_none(kinds: tuple[type[Toy], ...]) -> None:
    for position in range(len(kinds) + 1):
        filters = [kind() for kind in kinds]
        refusing = Fixed([2])
        both = Intersection([*filters[:position], refusing, *filters[position:]])
        both.advance(2)
        with pytest.raises(FilterError):
            both.advance(1)
        assert {part.fed for part in both.parts if isinstance(part, Replay)} == {(2,)}


class Stuck(Toy):
    """Goes forwards only: a reset fails."""

    def reset(self) -> None:
        raise OSError("stuck")


def test_a_rewind_happens_in_every_part_or_in_none() -> None:
    native, stuck, copyable = NativeToy(), Stuck(), CopyableToy()
    both = Intersection([native, stuck, copyable])
    both.advance(1)
    for token in (1, 1, 2):
        both.advance(token)
    with pytest.raises(OSError, match="stuck"):
        both.rewind(1)
    assert native.tokens == stuck.tokens == [1, 1, 1, 2]
    both.advance(1)
    assert native.tokens == stuck.tokens == [1, 1, 1, 2, 1]
    with pytest.raises(RewindError):
        both.rewind(-1)


def test_an_intersection_keeps_filters_that_are_replays_already() -> None:
    replay = Replay(Toy())
    both = Intersection([replay])
    assert both.parts == (replay,)


def test_every_part_may_lose_the_leading_space_of_the_text() -> None:
    both = AllOf(Regex("[a-c]+"), Regex("[b-d]+"))
    vocabulary = sentencepiece()
    for text, good in (("b", True), (" b", True), ("a", False), (" a", False), ("  b", False)):
        assert takes(constrained(both, vocabulary=vocabulary), text) is good


def test_filters_may_be_mixed_with_specifications() -> None:
    constraint = constrained(Regex("[A-Z]+"), Fixed([65, 66, 300]))
    assert ordinary(constraint) == {65, 66}
    assert allowed(constraint) == {65, 66}
    constraint.advance(65)
    assert constraint.vocabulary is alphabet()
    with pytest.raises(FilterError):
        constraint.advance(67)
