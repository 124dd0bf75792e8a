"""The laws of parts for filters of every ability, against a filter that is built anew."""

from __future__ import annotations

from typing import Any

import pytest

from mlxgen.errors import FilterError, StateError
from mlxgen.filters import Replay, no_tokens, tokens_of

from .helpers import CopyableToy, NativeToy, Toy


def look(replay: Replay) -> tuple[Any, ...]:
    row = no_tokens(Toy.SIZE)
    replay.fill(row)
    return tuple(replay.fed), tuple(tokens_of(row).tolist()), replay.can_end()


def allowed(replay: Replay) -> list[int]:
    row = no_tokens(Toy.SIZE)
    replay.fill(row)
    return [int(token) for token in tokens_of(row)]


def grown(replay: Replay, length: int) -> Replay:
    while len(replay.fed) < length:
        replay.advance(allowed(replay)[0])
    return replay


@pytest.mark.parametrize("ability", [CopyableToy, NativeToy])
@pytest.mark.parametrize("back", [1, 10, 100])
def test_the_cost_of_a_rewind_does_not_grow_with_the_history(ability: type[Toy], back: int) -> None:
    costs = []
    for length in (200, 2000):
        replay = grown(Replay(ability(), every=64), length)
        log = replay.filter.log
        log.update(advance=0, reset=0, fork=0, rewind=0)
        replay.rewind(length - back)
        costs.append(log.copy())
        assert log["advance"] < 64 and log["fork"] <= 1 and log["reset"] == 0
    assert costs[0]["rewind"] == costs[1]["rewind"]


def test_a_forward_only_filter_is_fed_its_history_again() -> None:
    replay = grown(Replay(Toy(), every=64), 100)
    log = replay.filter.log
    log.update(advance=0, reset=0)
    replay.rewind(90)
    assert log == {"advance": 90, "reset": 1, "fork": 0, "rewind": 0}


def test_copies_of_what_was_taken_back_are_forgotten() -> None:
    replay = grown(Replay(CopyableToy(), every=2), 6)
    replay.rewind(1)
    fresh = Replay(Toy())
    for token in (1, 5, 5, 3):
        fresh.advance(token)
    for token in (5, 5, 3, 1):
        replay.advance(token)
    replay.rewind(4)
    assert look(replay) == look(fresh)


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
