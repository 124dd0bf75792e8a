"""How many tokens are drafted, and when drafts rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlxgen.engine.drafts.policy import LONGEST_REST, REST, Policy


def drafted(policy: Policy, steps: int, stood: Callable[[int], int], cost: float) -> int:
    """Of so many steps, those with a draft, each of which took as long as ``cost`` plain ones and
    of which so many tokens stood."""
    count = 0
    for _ in range(steps):
        policy.step()
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


def test_what_never_pays_is_hardly_ever_drafted() -> None:
    policy = Policy(4.0)
    assert drafted(policy, 4000, lambda _: 0, 1.3) < 30
    assert drafted(policy, 2 * LONGEST_REST, lambda _: 0, 1.3) <= 2


def test_what_costs_nothing_is_drafted_whatever_stands() -> None:
    count = drafted(Policy(4.0), 1000, lambda _: 0, 1.0)
    assert 0.95 * 1000 < count < 1000  # a few steps show what plain ones take


@pytest.mark.parametrize(("cost", "pays"), [(1.5, True), (3.0, False)])
def test_drafts_that_stand_every_other_time_are_worth_it_or_not(cost: float, pays: bool) -> None:
    count = drafted(Policy(2.0), 2000, lambda count: 2 * (count % 2), cost)
    assert count > 1900 if pays else count < 200


def test_drafts_that_pay_again_are_found_and_rest_no_longer_than_at_first() -> None:
    policy = Policy(4.0)
    drafted(policy, 2000, lambda _: 0, 2.0)
    assert drafted(policy, LONGEST_REST + 50, lambda _: 8, 1.5) > 45
    drafted(policy, 40, lambda _: 0, 4.0)
    assert policy.rests
    for _ in range(2 * REST):
        policy.step()
    assert not policy.rests


def test_a_step_whose_time_nobody_knows_says_how_many_stood_and_nothing_else() -> None:
    policy = Policy(4.0)
    policy.saw(4, 0, 0.0)
    assert policy.tokens(16) == 2 and policy.gain == Policy(4.0).gain


def test_a_copy_goes_its_own_way() -> None:
    policy = Policy(4.0)
    twin = policy.fork()
    drafted(twin, 20, lambda _: 0, 3.0)
    assert twin.rests and not policy.rests and policy.tokens(16) == 4
