"""A constraint: several filters as one, its masks, and what it never lets through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen.errors import DeadEndError, FilterError, OptionError, RewindError, StateError
from mlxgen.filters import (
    Allow,
    Constraint,
    Lark,
    LMFormatEnforcer,
    OutlinesCore,
    Regex,
    Replay,
    Specification,
    allows,
    fill_masks,
    no_tokens,
    tokens_of,
    without_tokens,
    word_count,
    words_of,
)
from mlxgen.tokens import Vocabulary

from .helpers import (
    CopyableToy,
    Fixed,
    NativeToy,
    Toy,
    allowed,
    alphabet,
    byte_level,
    constrained,
    feed,
    ordinary,
)


def test_a_constraint_without_filters_restricts_nothing() -> None:
    constraint = constrained(vocab_size=alphabet().size + 100)
    assert constraint.mask() is None
    assert constraint.can_end() and not constraint.ended()
    assert constraint.forced() == []
    assert constraint.validate([1, 2]) == 2
    constraint.advance(1)
    constraint.advance()
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
            free.advance(1, token)
        assert free.validate([1, token]) == 1
    assert len(free) == 0


def test_logits_may_be_narrower_or_wider_than_the_tokenizer() -> None:
    letters, usual = alphabet(), byte_level()
    cases: list[tuple[Specification, Vocabulary, tuple[int, ...]]] = [
        (Regex("[\x00-~]+"), letters, (1, 31, 32, 33, 100, 128, 200, letters.size, 512)),
        (LMFormatEnforcer.regex("[a-z]+"), usual, (100, 256, usual.size, usual.size + 50)),
        (OutlinesCore("[a-z]+"), usual, (100, 256, usual.size, usual.size + 50)),
    ]
    for spec, vocabulary, widths in cases:
        full = ordinary(constrained(spec, vocabulary=vocabulary))
        for width in widths:
            constraint = constrained(spec, vocabulary=vocabulary, vocab_size=width)
            assert ordinary(constraint) == {token for token in full if token < width}
            if width < vocabulary.size:
                with pytest.raises(FilterError, match=r"outside the vocabulary|ends the text"):
                    constraint.advance(width)


def test_end_tokens_are_never_fed_to_filters() -> None:
    constraint = constrained(Fixed(None), vocabulary=byte_level())
    end = min(byte_level().eos)
    with pytest.raises(FilterError, match="never fed"):
        constraint.advance(end)
    assert constraint.validate([1, end, 1]) == 1


def test_a_mask_is_kept_until_the_next_step() -> None:
    constraint = constrained(Regex("ab"))
    mask = constraint.mask()
    assert mask is not None and constraint.mask() is mask
    kept = mask.copy()
    feed(constraint, "a")
    assert constraint.mask() is not mask
    assert (mask == kept).all()  # it is the caller's for good


def test_a_dead_end_is_an_error_each_time_and_can_be_rewound() -> None:
    constraint = constrained(Allow(lambda tokens: [] if tokens else [65, 66]))
    constraint.advance(65)
    for _ in range(2):
        with pytest.raises(DeadEndError, match=r"after 1 tokens.*Allow\(.*allows none$"):
            constraint.mask()
        assert not constraint.ended()
        with pytest.raises(DeadEndError):
            constraint.forced()
    assert not constraint.can_end()
    constraint.rewind(0)
    assert ordinary(constraint) == {65, 66}


class Stuck(Toy):
    """Goes forwards only: a reset fails."""

    def reset(self) -> None:
        raise OSError("stuck")


class Breaking(CopyableToy):
    """Its copies refuse to be fed token 5, though it took it itself."""

    is_copy = False

    def advance(self, token: int) -> None:
        if self.is_copy and token == 5:
            raise OSError("stuck")
        super().advance(token)

    def fork(self) -> CopyableToy:
        twin = super().fork()
        vars(twin)["is_copy"] = True
        return twin


@pytest.mark.parametrize("make", [Stuck, Breaking])
def test_a_rewind_happens_in_every_part_or_in_none(make: type[Toy]) -> None:
    native, stuck = NativeToy(), make()
    constraint = constrained(native, stuck, CopyableToy())
    for token in (5, 1, 1, 2):
        constraint.advance(token)
    with pytest.raises(OSError, match="stuck"):
        constraint.rewind(1)
    assert native.tokens == stuck.tokens == [5, 1, 1, 2] and len(constraint) == 4
    constraint.advance(1)
    with pytest.raises(RewindError):
        constraint.rewind(-1)


def test_it_is_known_which_filters_are_fed_the_whole_text_to_go_back() -> None:
    for spec in (Regex("ab"), LMFormatEnforcer.regex("ab"), OutlinesCore("ab"), NativeToy()):
        assert constrained(spec, vocabulary=byte_level()).rewinds, spec
    assert constrained().rewinds and not constrained(Regex("ab"), Toy()).rewinds


def test_what_is_not_a_filter_or_a_list_of_filters_is_refused() -> None:
    wrong: Any
    for wrong in (5, "a", None, Regex, Toy, object(), {"type": "object"}):
        with pytest.raises(OptionError, match="filters"):
            Constraint([wrong], alphabet(), alphabet().size)
    for wrong in (5, None, Regex("a")):
        with pytest.raises(OptionError, match="list of filters"):
            Constraint(wrong, alphabet(), alphabet().size)


def test_one_rows_error_is_its_own() -> None:
    dead = constrained(Allow(lambda tokens: []))
    stuck = constrained(Lark('start: "a" <[256]> "b"'), Regex("b"))
    good = [constrained(Regex("a+")), constrained(Toy())]
    fill_masks([dead, stuck, *good])
    assert all(constraint.outlook for constraint in good)
    for constraint in (dead, stuck):
        with pytest.raises(DeadEndError):
            constraint.mask()


# ---- words of bits -------------------------------------------------------------------------------


@given(st.sets(st.integers(-5, 120)), st.sets(st.integers(-3, 120)), st.integers(1, 100))
def test_words_hold_exactly_the_tokens_in_range(tokens: set[int], out: set[int], size: int) -> None:
    row = words_of(tokens, size)
    assert len(row) == word_count(size) == len(no_tokens(size)) == -(-size // 32)
    held = {token for token in tokens if 0 <= token < size}
    assert set(tokens_of(row).tolist()) == held
    assert {token for token in range(-5, 140) if allows(row, token)} == held
    assert set(tokens_of(without_tokens(row, out, size)).tolist()) == held - out
    assert set(tokens_of(without_tokens(None, out, size)).tolist()) == set(range(size)) - out
    assert set(tokens_of(row).tolist()) == held  # they are taken out of a copy


# ---- how a filter of any ability goes back and is copied; ``test_laws.py`` says whether rightly --


def grown(replay: Replay, length: int) -> Replay:
    """Fed so many tokens, and with its log as new."""
    while len(replay.fed) < length:
        replay.advance(next(token for token in (1, 2) if replay.validate([token])))
    replay.filter.log.update(advance=0, reset=0, fork=0, rewind=0)
    return replay


@pytest.mark.parametrize("ability", [CopyableToy, NativeToy])
@pytest.mark.parametrize("back", [1, 10, 100])
def test_the_cost_of_a_rewind_does_not_grow_with_the_history(ability: type[Toy], back: int) -> None:
    costs = []
    for length in (200, 2000):
        replay = grown(Replay(ability(), every=64), length)
        log = replay.filter.log
        replay.rewind(length - back)
        costs.append(log["rewind"])
        assert log["advance"] < 64 and log["fork"] <= 1 and log["reset"] == 0
    assert costs[0] == costs[1]


def test_a_forward_only_filter_is_fed_its_history_again() -> None:
    replay = grown(Replay(Toy(), every=64), 100)
    replay.rewind(90)
    assert replay.filter.log == {"advance": 90, "reset": 1, "fork": 0, "rewind": 0}


def test_copies_of_what_was_taken_back_are_forgotten() -> None:
    replay = grown(Replay(CopyableToy(), every=2), 6)
    replay.rewind(1)
    for token in (5, 5, 3, 1):
        replay.advance(token)
    replay.rewind(4)
    assert replay.filter.tokens == [1, 5, 5, 3]


class Uncopyable(Toy):
    def __deepcopy__(self, memo: Any) -> Uncopyable:
        raise TypeError("holds a socket")


def test_forks_fall_back_to_a_factory_and_then_to_deepcopy() -> None:
    for replay in (Replay(Uncopyable), Replay(Toy())):
        replay.advance(1)
        twin = replay.fork()
        twin.advance(1)
        assert (replay.fed, twin.fed) == ((1,), (1, 1))
        assert (replay.filter.tokens, twin.filter.tokens) == ([1], [1, 1])
    with pytest.raises(StateError, match=r"holds a socket.*fork method"):
        Replay(Uncopyable()).fork()
