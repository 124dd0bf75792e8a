"""The laws of parts for filters of every ability, against a filter that is built anew."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import FilterError, OptionError, RewindError, StateError
from mlxgen.filters import Int32Words, Regex, Replay, no_tokens, tokens_of
from mlxgen.filters.compose import hint
from mlxgen.filters.replay import whole

from ..effort import tries
from .helpers import CopyableToy, Factory, NativeToy, Toy, constrained

ABILITIES = [Toy, CopyableToy, NativeToy]


def look(replay: Replay) -> tuple[Any, ...]:
    row = no_tokens(Toy.SIZE)
    replay.fill(row)
    return tuple(replay.fed), tuple(tokens_of(row).tolist()), replay.can_end()


def fed_to(replay: Replay, tokens: Sequence[int]) -> Replay:
    for token in tokens:
        replay.advance(token)
    return replay


def allowed(replay: Replay) -> list[int]:
    row = no_tokens(Toy.SIZE)
    replay.fill(row)
    return [int(token) for token in tokens_of(row)]


@pytest.mark.parametrize("ability", ABILITIES)
@settings(max_examples=tries(40))
@given(data=st.data())
def test_validate_counts_what_would_be_taken_and_changes_nothing(
    ability: Factory, data: st.DataObject
) -> None:
    replay = Replay(ability(), every=3)
    for _ in range(data.draw(st.integers(0, 8))):
        replay.advance(data.draw(st.sampled_from(allowed(replay))))
    tokens = data.draw(st.lists(st.integers(0, Toy.SIZE), max_size=5))
    before = look(replay)
    count = replay.validate(tokens)
    assert look(replay) == before
    fed_to(replay, tokens[:count])
    if count < len(tokens):
        with pytest.raises(FilterError):
            replay.advance(tokens[count])


def grown(replay: Replay, length: int) -> Replay:
    while len(replay.fed) < length:
        replay.advance(allowed(replay)[0])
    return replay


@pytest.mark.parametrize("ability", [CopyableToy, NativeToy])
@pytest.mark.parametrize("back", [1, 10, 100])
def test_the_cost_of_a_rewind_does_not_grow_with_the_history(ability: Factory, back: int) -> None:
    costs = []
    for length in (200, 2000):
        replay = grown(Replay(ability(), every=64), length)
        log = replay.filter.log  # type: ignore[attr-defined]
        log.update(advance=0, reset=0, fork=0, rewind=0)
        replay.rewind(length - back)
        costs.append(log.copy())
        assert log["advance"] < 64
        assert log["fork"] <= 1
        assert log["rewind"] <= 1
        assert log["reset"] == 0
    assert costs[0]["rewind"] == costs[1]["rewind"]


def test_a_forward_only_filter_is_fed_its_history_again() -> None:
    replay = grown(Replay(Toy(), every=64), 100)
    log = replay.filter.log  # type: ignore[attr-defined]
    log.update(advance=0, reset=0)
    replay.rewind(90)
    assert log == {"advance": 90, "reset": 1, "fork": 0, "rewind": 0}


def test_copies_are_spaced_and_dropped_with_the_history() -> None:
    replay = grown(Replay(CopyableToy(), every=10), 95)
    log = replay.filter.log  # type: ignore[attr-defined]
    assert log["fork"] == 10  # at 0, 10, ..., 90
    replay.rewind(33)
    log.update(advance=0, fork=0)
    grown(replay, 95)
    assert log["fork"] == 6  # at 40, ..., 90: the one at 30 is still there


def test_a_rewind_to_or_beyond_the_end_does_nothing() -> None:
    replay = Replay(Toy())
    replay.advance(1)
    replay.rewind(1)
    replay.rewind(7)
    assert replay.fed == (1,)
    with pytest.raises(RewindError) as caught:
        replay.rewind(-1)
    assert caught.value.possible == 1


class Breaking(CopyableToy):
    """Its copies refuse to be fed token 5, though it took it itself."""

    broken = False

    def advance(self, token: int) -> None:
        if self.broken and token == 5:
            raise FilterError("broken")
        super().advance(token)

    def fork(self) -> CopyableToy:
        twin = super().fork()
        twin.broken = True  # type: ignore[attr-defined]
        return twin


def test_a_rewind_that_fails_changes_nothing() -> None:
    replay = Replay(Breaking(), every=64)
    for token in (5, 1, 1):
        replay.advance(token)
    before = look(replay)
    with pytest.raises(FilterError, match="broken"):
        replay.rewind(2)
    assert look(replay) == before
    replay.rewind(0)
    assert replay.fed == ()


class Uncopyable(Toy):
    def __deepcopy__(self, memo: Any) -> Uncopyable:
        raise TypeError("holds a socket")


def test_forks_fall_back_to_a_factory_and_then_to_deepcopy() -> None:
    made = Replay(Uncopyable)
    made.advance(1)
    assert look(made.fork()) == look(made)
    copied = Replay(Toy())
    copied.advance(1)
    twin = copied.fork()
    twin.advance(1)
    assert copied.fed == (1,)
    with pytest.raises(StateError, match=r"holds a socket.*fork method"):
        Replay(Uncopyable()).fork()
    assert copy.deepcopy(Toy()).tokens == []


class Asking(Toy):
    def forced(self) -> list[int]:
        return [3, 3]

    def hint(self) -> list[int]:
        return [4]

    def validate(self, tokens: Any) -> int:
        return 99


def test_what_a_filter_can_do_itself_is_asked_of_it() -> None:
    replay = Replay(Asking())
    assert (list(replay.forced()), list(hint(replay)), replay.validate([1])) == ([3, 3], [4], 99)
    plain = Replay(Toy())
    assert (list(plain.forced()), list(hint(plain))) == ([], [])


def test_bad_arguments_are_named() -> None:
    with pytest.raises(OptionError, match="every"):
        Replay(Toy(), every=0)
    with pytest.raises(OptionError, match=r"expected a filter .* got int"):
        Replay(5)  # type: ignore[arg-type]


def test_a_replay_is_a_filter_itself() -> None:
    inner = Replay(Toy())
    outer = Replay(inner)
    for token in (1, 1, 1):
        outer.advance(token)
    outer.rewind(1)
    assert list(inner.fed) == list(outer.fed) == [1]
    row: Int32Words = np.zeros(1, dtype=np.int32)
    assert outer.fill(row)
    outer.reset()
    assert list(inner.fed) == []


def test_only_a_filter_that_lacks_methods_gets_a_replay() -> None:
    asking = Asking()
    assert isinstance(whole(asking), Replay)  # it cannot rewind
    native = constrained(Regex("ab")).parts[0]
    assert whole(native) is native and not isinstance(native, Replay)
