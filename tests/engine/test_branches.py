"""What controllers may ask for: every wrong shape is refused, and the error names the branch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxgen import Branch, OptionError, Splice, Wait
from mlxgen.engine.branches import Decision, decide, name_of
from mlxgen.filters import tokens_of, words_of

TABLE = Path(__file__).parents[1] / "data" / "branches.jsonl"
SIZE = 50
GOOD = Branch(sample_mask=[1])


def read(*branches: Any) -> list[Decision]:
    answer = decide(list(branches), length=10, vocab_size=SIZE)
    assert isinstance(answer, list)
    return answer


def allowed(mask: Any) -> list[int] | None:
    (decision,) = read(Branch(sample_mask=mask))
    assert decision.steering is not None
    words = decision.steering.words
    return None if words is None else tokens_of(words).tolist()


def test_an_answer_is_a_list_of_branches_or_a_wait() -> None:
    assert read() == []
    wait = Wait("a thing")
    assert decide(wait, length=1, vocab_size=SIZE) is wait and repr(wait) == "<Wait for a thing>"
    for answer in (None, GOOD, "branch", 3):
        with pytest.raises(OptionError, match="expected a list of Branch"):
            decide(answer, length=1, vocab_size=SIZE)


def test_a_mask_may_be_ids_flags_or_packed_words() -> None:
    flags = np.zeros(SIZE, dtype=bool)
    flags[[3, 49]] = True
    for mask in ([49, 3], {3, 49}, (3, 49, 3), frozenset({3, 49}), flags, words_of([3, 49], SIZE)):
        assert allowed(mask) == [3, 49]
    assert allowed(range(4, 6)) == [4, 5] and allowed(range(SIZE)) is None
    assert allowed(np.array(words_of([7], SIZE)).view(np.uint32)) == [7]
    assert allowed([np.int64(4)]) == [4]


def test_words_are_copied_and_their_surplus_bits_ignored() -> None:
    words = np.full(2, -1, dtype=np.int32)
    (decision,) = read(Branch(sample_mask=words))
    words[:] = 0
    assert decision.steering is not None and decision.steering.words is not None
    assert tokens_of(decision.steering.words).tolist() == list(range(SIZE))


def test_what_can_be_carried_out_is_taken() -> None:
    assert read(Branch(2, None, [[1, 2]])) == [Decision(2, (1, 2), None)]
    assert read(Branch(2, None, [[]])) == [Decision(2, (), None)]
    assert read(Branch(9, [1]))[0].backtrack == 9
    assert read(Branch(10, None, [[1]]))[0].run == (1,)
    read(sampled(Splice([1], 11, [5])), sampled(Splice([1], 10)), sampled(Splice([1], 8, [5]), 3))
    (decision,) = read(Branch(sample_mask=[1], temperature=np.float32(0.5)))  # type: ignore[arg-type]
    assert decision.steering is not None and decision.steering.temperature == 0.5


def sampled(splice: Any, back: int = 0) -> Branch:
    return Branch(back, [1], splices=[splice])


def test_what_follows_from_a_sampled_token_is_its_run_and_the_first_splice_that_matches() -> None:
    splices = [Splice([1], 3, [8]), Splice([2], 1), Splice((), 0, [9])]
    (decision,) = read(Branch(sample_mask=[1, 2, 3], ff_tokens=[[1, 5], [3, 4]], splices=splices))
    steering = decision.steering
    assert steering is not None and steering.expects_run
    assert steering.outcome(1) == (1, (8,))  # its run goes, and one token before it
    assert steering.outcome(2) == (0, ())
    assert steering.outcome(3) == (0, (3, 4, 9))
    for tokens in ([], [5]):
        (decision,) = read(Branch(sample_mask=[1], splices=[Splice([1], 1, tokens)]))
        assert decision.steering is not None and decision.steering.expects_run == bool(tokens)


REFUSED = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
"""What a branch has, and the field that is wrong with it."""
MASKS = [np.zeros(SIZE, bool), np.zeros(2, np.int32), np.zeros(SIZE + 1, bool)]
MASKS += [np.zeros(3, np.int32), np.zeros(2, np.int64)]


def made(given: dict[str, Any]) -> Branch:
    if "splices" in given:
        splices = given.pop("splices")
        given["splices"] = [Splice(**one) if isinstance(one, dict) else one for one in splices]
    return Branch(**given)


def test_what_cannot_be_carried_out_is_refused_by_the_name_of_its_place() -> None:
    wrongs: list[tuple[str, Any]] = [(each["field"], made(each["branch"])) for each in REFUSED]
    wrongs += [(".sample_mask", Branch(sample_mask=mask)) for mask in MASKS]
    wrongs += [("", [1, 2]), (".temperature", Branch(sample_mask=[1], temperature=float("nan")))]
    for field, wrong in wrongs:
        with pytest.raises(OptionError) as caught:
            read(GOOD, wrong)
        assert caught.value.field == f"branches[1]{field}"


def test_branches_are_named_by_the_forks_that_lead_to_them() -> None:
    names = {(): (), (0,): (), (1,): (1,), (0, 1): (0, 1), (1, 0, 0): (1,), (0, 0, 2): (0, 0, 2)}
    assert {path: name_of(path) for path in names} == names
