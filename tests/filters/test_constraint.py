from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlxgen.errors import DeadEndError, FilterError, OptionError, RewindError, StateError
from mlxgen.filters import Allow, Constraint, Int32Words, JsonSchema, Regex
from mlxgen.filters.matcher import GrammarFilter

from .helpers import (
    Fixed,
    NativeToy,
    Toy,
    allowed,
    alphabet,
    byte_level,
    constrained,
    feed,
    ordinary,
    pieces,
    state,
)


def test_a_constraint_without_filters_restricts_nothing() -> None:
    constraint = constrained(vocab_size=alphabet().size + 100)
    assert constraint.mask() is None
    assert constraint.can_end() and not constraint.ended()
    assert constraint.forced() == []
    assert constraint.validate([1, 2]) == 2
    constraint.advance(1)
    constraint.advance_as(())
    assert len(constraint) == 2
    constraint.rewind(1)
    assert len(constraint) == 1


def test_ids_that_the_tokenizer_does_not_have_are_never_allowed() -> None:
    size = alphabet().size
    free = constrained(Fixed(None, ends=True), vocab_size=size + 70)
    assert allowed(free) == set(range(size))
    everything = constrained(Fixed(range(size + 70), ends=True), vocab_size=size + 70)
    assert allowed(everything) == set(range(size))
    assert constrained(Fixed(None, ends=True), vocab_size=size).mask() is None
    for token in (size, size + 69, size + 70, -1):
        with pytest.raises(FilterError, match=f"expected 0 to {size - 1}"):
            free.advance(token)
        with pytest.raises(FilterError, match="outside the vocabulary"):
            free.advance_as([1, token])
        assert free.validate([1, token]) == 1
    assert len(free) == 0


def test_end_tokens_are_the_constraints_own_business() -> None:
    vocabulary = byte_level()
    ends = sorted(vocabulary.eos)
    for ends_here in (True, False):
        constraint = constrained(Fixed([1, *ends], ends=ends_here), vocabulary=vocabulary)
        assert allowed(constraint) == ({1, *ends} if ends_here else {1})
        constraint = constrained(Fixed(None, ends=ends_here), vocabulary=vocabulary)
        assert (vocabulary.eos & allowed(constraint) != set()) is ends_here
    with pytest.raises(FilterError, match="never fed"):
        constraint.advance(ends[0])
    assert constraint.validate([1, ends[0], 1]) == 1


def test_the_text_has_ended_if_only_the_end_is_possible() -> None:
    constraint = constrained(Regex("ab?"))
    assert not constraint.ended()
    assert not feed(constraint, "a").ended() and constraint.can_end()
    assert feed(constraint, "b").ended()
    assert allowed(constraint) == alphabet().eos
    assert not constrained(Fixed(None, ends=True)).ended()


def test_no_mask_is_computed_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[int] = []
    fill = GrammarFilter.fill

    def counted(self: GrammarFilter, row: Int32Words) -> bool:
        filled.append(1)
        return fill(self, row)

    monkeypatch.setattr(GrammarFilter, "fill", counted)
    constraint = constrained(Regex("[ab]{3}"))
    for length in range(3):
        assert not constraint.ended() and not constraint.can_end()
        assert constraint.forced() == [] and len(filled) == length
        constraint.mask()
        feed(constraint, "a")
    assert constraint.ended() and constraint.can_end() and len(filled) == 4


def test_a_mask_is_kept_until_the_next_step() -> None:
    constraint = constrained(Regex("ab"))
    mask = constraint.mask()
    assert mask is not None and constraint.mask() is mask
    kept = mask.copy()
    feed(constraint, "a")
    known = [constraint.outlook is not None]
    assert constraint.mask() is not mask
    assert (mask == kept).all()  # it is the caller's for good
    constraint.advance_as(())
    assert [*known, constraint.outlook is not None] == [False, True]
    constraint.rewind(0)
    again = constraint.mask()
    assert again is not None and (again == kept).all()


def test_a_dead_end_is_an_error_each_time_and_can_be_rewound() -> None:
    constraint = constrained(Allow(lambda tokens: [] if tokens else [65, 66]))
    constraint.advance(65)
    for _ in range(2):
        with pytest.raises(DeadEndError, match="after 1 tokens"):
            constraint.mask()
        assert not constraint.ended()
        with pytest.raises(DeadEndError):
            constraint.forced()
    assert not constraint.can_end()
    constraint.rewind(0)
    assert ordinary(constraint) == {65, 66}


def test_positions_may_feed_other_tokens_than_their_own() -> None:
    constraint = constrained(Regex("abc"))
    constraint.advance_as([ord("a"), ord("b")])
    constraint.advance_as(())
    assert (len(constraint), pieces(constraint)) == (2, {b"c"})
    with pytest.raises(FilterError):
        constraint.advance_as([ord("c"), ord("c")])
    assert (len(constraint), pieces(constraint)) == (2, {b"c"})
    constraint.rewind(1)
    assert pieces(constraint) == {b"c"}
    constraint.rewind(0)
    assert pieces(constraint) == {b"ab"}  # forced, and spelled so by the tokenizer


def test_rewinding_to_or_beyond_the_end_does_nothing() -> None:
    constraint = feed(constrained(Regex("abc")), "ab")
    before = state(constraint)
    for to in (2, 3, 99):
        constraint.rewind(to)
    assert state(constraint) == before
    with pytest.raises(RewindError):
        constraint.rewind(-1)
    constraint.rewind(0)
    assert len(constraint) == 0


def test_a_fork_and_its_origin_do_not_see_each_other() -> None:
    toy = NativeToy()
    constraint = constrained(Regex("[ab]*c"), Fixed(None, ends=True))
    feed(constraint, "a")
    before = state(constraint)
    twin = constraint.fork()
    assert state(twin) == before
    feed(twin, "bc")
    assert state(constraint) == before
    constraint.rewind(0)
    assert twin.ended()
    assert toy.tokens == []


def test_a_filter_that_cannot_be_copied_says_what_to_do() -> None:
    class Uncopyable(Toy):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no")

    constraint = constrained(Regex("a*"), Uncopyable())
    with pytest.raises(StateError, match="fork method"):
        constraint.fork()
    assert len(constraint) == 0


@pytest.mark.parametrize("wrong", [5, "a", None, Regex, Toy, object(), {"type": "object"}])
def test_what_is_not_a_filter_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="filters"):
        Constraint([wrong], alphabet(), alphabet().size)


@pytest.mark.parametrize("wrong", [5, None, Regex("a")])
def test_what_is_not_a_list_of_filters_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="list of filters"):
        Constraint(wrong, alphabet(), alphabet().size)


def test_a_filter_taken_as_it_is_serves_one_sequence() -> None:
    toy = Toy()
    constraint = constrained(toy)
    constraint.advance(1)
    assert toy.tokens == [1]


def test_names_are_short() -> None:
    constraint = constrained(JsonSchema({"enum": ["x" * 500]}), Fixed([1]))
    with pytest.raises(DeadEndError) as caught:
        constraint.mask()
    name = str(caught.value).partition("may not end: ")[2].partition(" allows ")[0]
    assert name.startswith("JsonSchema(") and len(name) <= 80
    assert "Fixed allows 1" in str(caught.value)


def test_masks_may_be_given_to_mlx_as_they_are() -> None:
    import mlx.core as mx

    free = constrained(Fixed(None, ends=True), vocab_size=alphabet().size + 1)
    for constraint in (constrained(Regex("a")), free):
        mask = constraint.mask()
        assert mask is not None and mask.dtype == np.int32 and mask.flags.c_contiguous
        assert mx.array(mask).tolist() == mask.tolist()


def test_it_is_known_which_filters_are_fed_the_whole_text_to_go_back() -> None:
    assert constrained(Regex("ab")).rewinds and constrained().rewinds
    assert not constrained(Regex("ab"), Toy()).rewinds
