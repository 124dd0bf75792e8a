"""What controllers may ask for: every wrong shape is refused, and the error names the branch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlxgen import Branch, OptionError, Splice, Wait
from mlxgen.engine.branches import Decision, decide, name_of
from mlxgen.engine.request.ways import Replacement, Steering
from mlxgen.filters import tokens_of, words_of

SIZE = 50
GOOD = Branch(sample_mask=[1])


def read(*branches: Any, length: int = 10) -> list[Decision]:
    answer = decide(list(branches), length=length, vocab_size=SIZE)
    assert isinstance(answer, list)
    return answer


def refused(field: str, *branches: Any, length: int = 10) -> str:
    with pytest.raises(OptionError) as caught:
        read(*branches, length=length)
    assert caught.value.field == field
    return str(caught.value)


def allowed(mask: Any) -> list[int] | None:
    (decision,) = read(Branch(sample_mask=mask))
    assert decision.steering is not None
    words = decision.steering.words
    return None if words is None else tokens_of(words).tolist()


def test_an_answer_is_a_list_of_branches_or_a_wait() -> None:
    assert read() == []
    wait = Wait("nothing")
    assert decide(wait, length=1, vocab_size=SIZE) is wait
    for answer in (None, GOOD, "branch", 3):
        with pytest.raises(OptionError, match="expected a list of Branch"):
            decide(answer, length=1, vocab_size=SIZE)
    refused("branches[1]", GOOD, [1, 2])


def test_a_mask_may_be_ids_flags_or_packed_words() -> None:
    flags = np.zeros(SIZE, dtype=bool)
    flags[[3, 49]] = True
    for mask in ([49, 3], {3, 49}, (3, 49, 3), frozenset({3, 49}), flags, words_of([3, 49], SIZE)):
        assert allowed(mask) == [3, 49]
    assert allowed(range(4, 6)) == [4, 5]
    assert allowed(np.array(words_of([7], SIZE)).view(np.uint32)) == [7]
    assert allowed([np.int64(4)]) == [4]


def test_a_range_of_all_tokens_restricts_nothing() -> None:
    assert allowed(range(SIZE)) is None


def test_words_are_copied_and_their_surplus_bits_ignored() -> None:
    words = np.full(2, -1, dtype=np.int32)
    (decision,) = read(Branch(sample_mask=words))
    words[:] = 0
    assert decision.steering is not None and decision.steering.words is not None
    assert tokens_of(decision.steering.words).tolist() == list(range(SIZE))


def test_a_mask_that_allows_nothing_is_refused() -> None:
    masks: list[Any] = [
        [],
        set(),
        np.zeros(SIZE, dtype=bool),
        np.zeros(2, dtype=np.int32),
        range(0),
    ]
    for mask in masks:
        assert "allows no token" in refused("branches[2].sample_mask", GOOD, GOOD, Branch(0, mask))


def test_a_mask_of_the_wrong_kind_is_refused() -> None:
    arrays = [np.zeros(SIZE + 1, bool), np.zeros(3, np.int32), np.zeros(2, np.int64)]
    masks: list[Any] = ["ab", b"ab", 5, [SIZE], [-1], [True], [1.5], *arrays]
    for mask in masks:
        refused("branches[1].sample_mask", GOOD, Branch(sample_mask=mask))


def test_without_a_mask_there_is_exactly_one_run() -> None:
    assert read(Branch(2, None, [[1, 2]])) == [Decision(2, (1, 2), None)]
    assert read(Branch(2, None, [[]])) == [Decision(2, (), None)]
    for runs in ([], [[1], [2]]):
        refused("branches[1].ff_tokens", GOOD, Branch(ff_tokens=runs))


def test_a_run_is_not_taken_for_a_list_of_runs() -> None:
    for runs in ([1, 2], "ab", 3, None):
        refused("branches[0].ff_tokens", Branch(ff_tokens=runs))  # type: ignore[arg-type]


def test_without_a_mask_there_is_nothing_to_splice_and_no_temperature() -> None:
    refused("branches[0].splices", Branch(ff_tokens=[[1]], splices=[Splice()]))
    refused("branches[0].temperature", Branch(ff_tokens=[[1]], temperature=0.5))


def test_tokens_out_of_range_are_named() -> None:
    tokens: list[Any] = [-1, SIZE, True, "a", 1.5]
    for token in tokens:
        runs: Any = [[1], [2, token]]
        refused("branches[0].ff_tokens[1]", Branch(sample_mask=[1], ff_tokens=runs))
        splices: Any = [Splice(), Splice([token])]
        refused("branches[0].splices[1].when_sampled", Branch(sample_mask=[1], splices=splices))
        splices = [Splice(ff_tokens=[token])]
        refused("branches[0].splices[0].ff_tokens", Branch(sample_mask=[1], splices=splices))
    assert str(SIZE) in refused("branches[0].ff_tokens[0]", Branch(ff_tokens=[[SIZE]]))


def test_a_backtrack_is_at_most_the_history() -> None:
    assert read(Branch(9, [1]), length=10)[0].backtrack == 9
    assert read(Branch(10, None, [[1]]), length=10)[0].run == (1,)
    assert "10 tokens" in refused("branches[1].backtrack", GOOD, Branch(11, [1]), length=10)
    assert "no token" in refused("branches[0].backtrack", Branch(10, [1]), length=10)
    assert "no token" in refused("branches[0].backtrack", Branch(10, None, [[]]), length=10)
    for back in (-1, True, 1.5, "1"):
        refused("branches[0].backtrack", Branch(back, [1]))  # type: ignore[arg-type]


def test_a_splice_takes_back_no_more_than_there_is() -> None:
    def splice(back: int, tokens: list[int], branch_back: int = 0) -> Branch:
        return Branch(branch_back, [1], splices=[Splice([1], back, tokens)])

    read(splice(11, [5]), splice(10, []), splice(8, [5], 3), length=10)
    refused("branches[0].splices[0].backtrack", splice(12, [5]), length=10)
    refused("branches[0].splices[0].backtrack", splice(11, []), length=10)
    refused("branches[0].splices[0].backtrack", splice(9, [5], 3), length=10)
    refused("branches[0].splices[0].backtrack", splice(-1, [5]))
    refused("branches[0].splices[0]", Branch(sample_mask=[1], splices=[[1]]))  # type: ignore[list-item]


def test_runs_that_start_alike_or_with_nothing_are_refused() -> None:
    refused("branches[0].ff_tokens", Branch(sample_mask=[1], ff_tokens=[[1, 2], [1, 3]]))
    refused("branches[0].ff_tokens", Branch(sample_mask=[1], ff_tokens=[[1, 2], []]))


def test_a_temperature_is_a_number_in_its_range() -> None:
    (decision,) = read(Branch(sample_mask=[1], temperature=np.float32(0.5)))  # type: ignore[arg-type]
    assert decision.steering is not None and decision.steering.temperature == 0.5
    for value in (-1, 101, float("nan"), "1", True, [1]):
        refused("branches[0].temperature", Branch(sample_mask=[1], temperature=value))  # type: ignore[arg-type]


def test_a_run_is_appended_whole_when_its_first_token_is_sampled() -> None:
    steering = Steering(runs={1: (1, 2, 3), 4: (4,)})
    assert steering.outcome(1) == (0, (1, 2, 3))
    assert steering.outcome(4) == (0, (4,))
    assert steering.outcome(9) == (0, (9,))


def test_the_first_splice_that_matches_is_applied_behind_what_was_appended() -> None:
    splices = (
        Replacement(frozenset({1}), 1, (7,)),
        Replacement(frozenset({1, 2}), 3, ()),
        Replacement(None, 0, (8, 9)),
    )
    steering = Steering(splices=splices)
    assert steering.outcome(1) == (0, (7,))
    assert steering.outcome(2) == (2, ())
    assert steering.outcome(3) == (0, (3, 8, 9))
    run = Steering(runs={2: (2, 5, 6)}, splices=splices)
    assert run.outcome(2) == (0, ())
    assert Steering(runs={1: (1, 5)}, splices=splices).outcome(1) == (0, (1, 7))


def test_a_wait_wakes_once_however_early_it_is_woken() -> None:
    calls = []
    wait = Wait("a thing")
    wait.wake()
    wait.when_woken(lambda: calls.append(1))
    wait.wake()
    assert calls == [1] and wait.woken
    shared = Wait("another")
    shared.when_woken(lambda: calls.append(2))
    shared.when_woken(lambda: calls.append(3))
    shared.wake()
    shared.wake()
    assert calls == [1, 2, 3]
    assert repr(wait) == "<Wait for a thing>"


def test_branches_are_named_by_the_forks_that_lead_to_them() -> None:
    names = {(): (), (0,): (), (1,): (1,), (0, 1): (0, 1), (1, 0, 0): (1,), (0, 0, 2): (0, 0, 2)}
    assert {path: name_of(path) for path in names} == names
