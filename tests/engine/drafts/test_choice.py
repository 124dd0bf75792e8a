"""Who is asked for drafts, for how many tokens, and when nobody is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlxgen import Rejected
from mlxgen.engine.drafts.drafts import WIDEST, Drafts
from mlxgen.engine.drafts.guess import Guess
from mlxgen.engine.drafts.policy import MOST_ROWS, REST
from mlxgen.engine.options import Options
from mlxgen.engine.request.request import Request
from mlxgen.engine.request.ways import Steering
from mlxgen.tokens import Token
from tests.fakes.drafting import Absurd, Told, ToldOther
from tests.fakes.speaking import endless

SECOND = 1.0  # that a plain step takes


@pytest.fixture(scope="module")
def request_of() -> Callable[..., Request]:
    lm = endless().lm
    return lambda **options: lm.runtime.prepare(
        [*b"abc"], Options.of({"max_tokens": 90, **options})
    )


def following(tokens: list[Token]) -> Token:
    return tokens[-1] + 1


def length(guess: Guess | None) -> int:
    return 0 if guess is None else len(guess.fed)


def test_nothing_is_drafted_before_a_plain_step_is_known_or_for_many_rows(
    request_of: Callable[..., Request],
) -> None:
    request, drafts = request_of(), Drafts([Told(following)])
    for rows, step in ((1, 0.0), (MOST_ROWS + 1, SECOND)):
        assert not drafts.expects(request, rows, step)
        assert drafts.propose(request, rows, step) is None
    assert drafts.expects(request, MOST_ROWS, SECOND)
    asked_for = Drafts([Told(following)], wanted=True)
    assert asked_for.expects(request, 99, 0.0) and asked_for.propose(request, 99, 0.0)


@pytest.mark.parametrize("rows", range(1, MOST_ROWS + 1))
def test_all_rows_together_run_a_few_tokens_only(
    request_of: Callable[..., Request], rows: int
) -> None:
    drafts = Drafts([Told(following)])
    assert 1 <= length(drafts.propose(request_of(), rows, SECOND)) <= WIDEST // rows - 1


def test_no_draft_passes_the_budget_or_what_was_asked_for(
    request_of: Callable[..., Request],
) -> None:
    for budget, most in ((1, 0), (2, 1), (4, 3), (90, 5)):
        drafts = Drafts([Told(following)], 5, wanted=True)
        assert length(drafts.propose(request_of(max_tokens=budget), 1, SECOND)) == most


def test_they_are_asked_in_order_and_who_has_nothing_gives_way(
    request_of: Callable[..., Request],
) -> None:
    request, silent, told = (
        request_of(),
        ToldOther(following, lambda length: False),
        Told(following),
    )
    for drafters, name in (([told, ToldOther(following)], "told"), ([silent, told], "told")):
        drafts = Drafts(drafters)
        guess = drafts.propose(request, 1, SECOND)
        assert guess is not None and guess.drafter == name and drafts.turn is told


def test_the_time_of_a_step_that_waited_in_vain_for_a_draft_counts_as_well(
    request_of: Callable[..., Request],
) -> None:
    drafter = Told(following)
    drafts, request = Drafts([drafter]), request_of()
    while not drafter.policy.rests:
        assert drafts.expects(request, 1, SECOND)
        drafter._has = lambda length: False
        assert drafts.propose(request, 1, SECOND) is None
        drafts.took(1.5, SECOND)
        drafter._has = lambda length: True
    for _ in range(REST - 1):
        assert not drafts.expects(request, 1, SECOND)
        assert drafts.propose(request, 1, SECOND) is None
    assert drafts.expects(request, 1, SECOND)


def test_what_stood_is_counted_by_who_proposed_it(request_of: Callable[..., Request]) -> None:
    drafts, request = Drafts([Told(following)]), request_of()
    for accepted in (6, 0, 2):
        drafted = length(drafts.propose(request, 1, SECOND))
        drafts.saw(drafted, min(drafted, accepted))
        drafts.took(1.1, SECOND)
    ((name, (proposed, stood)),) = drafts.counts.items()
    assert name == "told" and proposed > stood == 8


def test_tokens_that_do_not_exist_are_cut_off(request_of: Callable[..., Request]) -> None:
    request = request_of()
    for wrong in (-1, request.vocab_size, 10**12):
        told = Told(lambda tokens, wrong=wrong: 97 if len(tokens) < 5 else wrong)  # type: ignore[misc]
        assert length(Drafts([told]).propose(request, 1, SECOND)) == 2
        told = Told(lambda tokens, wrong=wrong: wrong)  # type: ignore[misc]
        assert Drafts([told]).propose(request, 1, SECOND) is None


def test_nothing_is_drafted_where_the_next_draw_is_unlike_those_after_it(
    request_of: Callable[..., Request],
) -> None:
    steered, banned, wished = request_of(), request_of(), request_of()
    steered.steering = Steering()
    banned.retries.reject(0, Rejected(97, "ban"), ban=True)
    wished.retries.ask(0, temperature=2.0)
    for request in (steered, banned, wished):
        assert Drafts([Told(following)], wanted=True).propose(request, 1, SECOND) is None


def test_one_that_fails_is_dropped_and_the_others_go_on(
    request_of: Callable[..., Request], caplog: pytest.LogCaptureFixture
) -> None:
    def fails(tokens: list[Token]) -> Token:
        raise ValueError("no")

    drafts, request = Drafts([ToldOther(fails), Told(following)]), request_of()
    guess = drafts.propose(request, 1, SECOND)
    assert guess is not None and guess.drafter == "told"
    assert [drafter.name for drafter in drafts.drafters] == ["told"]
    assert "'told other' failed and is not asked again" in caplog.text


def test_one_that_promises_and_has_too_many_is_cut(request_of: Callable[..., Request]) -> None:
    request = request_of()
    for _ in range(8):
        assert length(Drafts([Absurd(following)]).propose(request, 1, SECOND)) <= 6
        request.advance(97)
