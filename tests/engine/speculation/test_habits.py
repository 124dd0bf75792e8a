"""What is learned of places with few tokens, and how often expectations come true."""

from __future__ import annotations

import pytest

from mlxgen.engine.speculation import habits as module
from mlxgen.engine.speculation.habits import FEW, NEWEST, Habits, Junction
from mlxgen.engine.speculation.odds import LENGTHS, Odds, habit_grounds, match_grounds
from mlxgen.filters import words_of

WIDTH = 1000


def junction(*tokens: int, before: int = 0) -> Junction:
    at = Junction.of(words_of(tokens, WIDTH), before)
    assert at is not None
    return at


def test_only_masks_that_leave_few_tokens_are_junctions() -> None:
    assert Junction.of(words_of(range(FEW), WIDTH), 0) is not None
    assert Junction.of(words_of(range(FEW + 1), WIDTH), 0) is None
    assert Junction.of(words_of(range(0, WIDTH, 32), 32 * WIDTH), 0) is not None
    assert Junction.of(words_of(range(0, 32 * (FEW + 1), 32), 32 * WIDTH), 0) is None
    assert junction(1, 2) == junction(2, 1) != junction(1, 3)
    assert junction(33) != junction(65)  # the same bits in other words


def test_a_habit_is_what_came_most_often_and_most_lately() -> None:
    habits, at = Habits(), junction(1, 2, 3)
    assert habits.likeliest(at) is None
    for token in (1, 2, 2, 1):
        habits.saw(at, token)
    found = habits.likeliest(at)
    assert found == (1, 0.5, 4, True)


def test_after_an_unknown_token_the_mask_alone_says_what_comes() -> None:
    habits = Habits()
    habits.saw(junction(1, 2, before=7), 1)
    habits.saw(junction(1, 2, before=8), 2)
    habits.saw(junction(1, 2, before=8), 2)
    assert habits.likeliest(junction(1, 2, before=7)) == (1, 1.0, 1, True)
    assert habits.likeliest(junction(1, 2, before=9)) == (2, 2 / 3, 3, False)


def test_habits_change() -> None:
    habits, at = Habits(), junction(1, 2)
    for token in [1] * 1000 + [2] * NEWEST:
        habits.saw(at, token)
    found = habits.likeliest(at)
    assert found is not None and found.token == 2


def test_what_has_not_come_up_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 6)
    habits = Habits()
    for token in (1, 2, 1, 3, 1, 4):
        habits.saw(junction(token, 9), token)
    assert habits.likeliest(junction(2, 9)) is None
    assert all(habits.likeliest(junction(token, 9)) for token in (1, 3, 4))


def test_odds_become_what_is_seen() -> None:
    odds = Odds()
    kinds = [match_grounds(length, 1.0, 1, f) for length in (*LENGTHS, 99) for f in (False, True)]
    kinds += [habit_grounds(times, 1.0, known) for times in (1, 99) for known in (False, True)]
    assert len(set(kinds)) == len(kinds)
    before = [odds[kind] for kind in kinds]
    assert all(0 < chance < 1 for chance in before)
    for _ in range(200):
        odds.saw(kinds[3], False)
        odds.saw(kinds[-1], True)
    after = [odds[kind] for kind in kinds]
    assert after[3] < 0.1 and after[-1] > 0.95
    assert [*after[:3], *after[4:-1]] == [*before[:3], *before[4:-1]]


def test_a_longer_match_and_more_votes_are_worth_more_at_first() -> None:
    odds = Odds()
    by_length = [odds[match_grounds(length, 1.0, 1, False)] for length in (*LENGTHS[2:], 99)]
    by_votes = [odds[match_grounds(8, share, 1, False)] for share in (0.2, 0.4, 0.6, 0.8, 1.0)]
    assert by_length == sorted(by_length) and by_votes == sorted(by_votes)
    by_places = [odds[match_grounds(3, 1.0, places, False)] for places in (1, 2, 3, 9)]
    assert by_places == sorted(by_places)
