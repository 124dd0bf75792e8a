"""Who is asked for drafts, for how many tokens, and when nobody is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mlxgen.engine.drafts.drafts import LONGEST_REST, MOST_ROWS, REST, WIDEST, Drafts, Guess, Policy
from mlxgen.engine.options import Options
from mlxgen.engine.request.request import Request
from mlxgen.tokens import Token
from tests.fakes.drafting import Told, ToldOther
from tests.fakes.speaking import endless

SECOND = 1.0  # that a plain step takes


LM = endless().lm


def request_of(**options: Any) -> Request:
    return LM.runtime.prepare([*b"abc"], Options.of({"max_tokens": 90, **options}))


def following(tokens: list[Token]) -> Token:
    return tokens[-1] + 1


def length(guess: Guess | None) -> int:
    return 0 if guess is None else len(guess.fed)


def test_all_rows_together_draft_a_few_tokens_only_once_a_plain_step_is_known() -> None:
    request, drafts = request_of(), Drafts([Told(following)])
    for rows, step in ((1, 0.0), (MOST_ROWS + 1, SECOND)):
        assert not drafts.expects(request, rows, step)
        assert drafts.propose(request, rows, step) is None
    for rows in range(1, MOST_ROWS + 1):
        assert drafts.expects(request, rows, SECOND)
        assert 1 <= length(drafts.propose(request, rows, SECOND)) <= WIDEST // rows - 1
    for budget, most in ((1, 0), (2, 1), (4, 3), (90, 5)):
        drafts = Drafts([Told(following)], 5, wanted=True)
        assert length(drafts.propose(request_of(max_tokens=budget), 99, 0.0)) == most


def test_they_are_asked_in_order_and_who_has_nothing_gives_way() -> None:
    request, told = request_of(), Told(following)
    silent = ToldOther(following, lambda length: False)
    for drafters, name in (([told, ToldOther(following)], "told"), ([silent, told], "told")):
        drafts = Drafts(drafters)
        guess = drafts.propose(request, 1, SECOND)
        assert guess is not None and guess.drafter == name and drafts.turn is told


def test_the_time_of_a_step_that_waited_in_vain_for_a_draft_counts_as_well() -> None:
    drafter = Told(following)
    drafts, request = Drafts([drafter]), request_of()
    while not drafter.policy.rests:
        assert drafts.expects(request, 1, SECOND)
        drafter._has = lambda length: False
        assert drafts.propose(request, 1, SECOND) is None
        drafts.saw(0, 0, 1.5)
        drafter._has = lambda length: True
    for _ in range(REST - 1):
        assert not drafts.expects(request, 1, SECOND)
        assert drafts.propose(request, 1, SECOND) is None
    assert drafts.expects(request, 1, SECOND)


# ---- how many tokens, and when drafts rest -----------------------------------------------------


def drafted(policy: Policy, steps: int, stood: Callable[[int], int], cost: float) -> int:
    """Of so many steps, those with a draft, each of which took as long as ``cost`` plain ones and
    of which so many tokens stood."""
    count = 0
    for _ in range(steps):
        policy.rests = max(0, policy.rests - 1)
        if not policy.rests:
            count += 1
            proposed = policy.tokens(16)
            policy.saw(proposed, min(proposed, stood(count)), cost)
    return count


def test_a_draft_is_as_long_as_what_stood_and_longer_as_long_as_all_of_it_stands() -> None:
    policy = Policy(2.0)
    assert policy.tokens(16) == 2 and policy.tokens(1) == 1
    drafted(policy, 20, lambda _: 99, 1.0)
    assert policy.tokens(64) > policy.tokens(16) == 16
    drafted(policy, 20, lambda _: 3, 1.0)
    assert 3 <= policy.tokens(16) <= 4
    drafted(policy, 20, lambda _: 0, 1.0)
    assert policy.tokens(16) == 1


@pytest.mark.parametrize(
    ("stood", "cost", "least", "most"),
    [
        (lambda _: 0, 1.3, 1, 20),  # what never pays
        (lambda _: 0, 1.0, 1900, 1999),  # a few steps show what plain ones take
        (lambda count: 2 * (count % 2), 1.5, 1900, 2000),
        (lambda count: 2 * (count % 2), 3.0, 1, 200),
    ],
)
def test_what_pays_is_drafted_and_what_does_not_is_tried_now_and_then(
    stood: Callable[[int], int], cost: float, least: int, most: int
) -> None:
    assert least <= drafted(Policy(2.0), 2000, stood, cost) <= most


def test_drafts_that_pay_again_are_found_and_rest_no_longer_than_at_first() -> None:
    policy = Policy(4.0)
    drafted(policy, 2000, lambda _: 0, 2.0)
    assert drafted(policy, LONGEST_REST + 50, lambda _: 8, 1.5) > 45
    drafted(policy, 40, lambda _: 0, 4.0)
    assert policy.rests
    for _ in range(2 * REST):
        policy.rests = max(0, policy.rests - 1)
    assert not policy.rests
