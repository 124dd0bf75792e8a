"""Drafts are chosen by the tokens a second that they are worth."""

from __future__ import annotations

from functools import partial

from mlxgen.engine.speculation.acceptance import Experience, Price
from mlxgen.engine.speculation.worth import Choice, Offer, asked, choose


def flat(tokens: int, most: int = 8) -> float:
    """A pass is bound by reading the weights up to so many tokens, then by arithmetic."""
    return max(1.0, tokens / most)


def test_tokens_that_cost_nothing_are_drafted_as_far_as_the_pass_takes_no_longer() -> None:
    sure = Offer([0.9] * 16)
    assert choose([[sure]], flat) == [Choice(0, 7)]
    assert choose([[sure]] * 4, flat) == [Choice(0, 1)] * 4


def test_nothing_is_drafted_where_nothing_pays() -> None:
    assert choose([[Offer([0.5] * 4)]], lambda tokens: float(tokens)) == [None]
    assert choose([[Offer([0.9] * 4, Price(1.0, 1.0))]], flat) == [None]
    assert choose([[Offer([0.3])]], flat, host=0.4) == [None]
    assert choose([[], [Offer(())]], flat) == [None, None]


def test_the_drafter_is_taken_that_gives_most_for_its_time() -> None:
    text, model = Offer([0.5, 0.5]), Offer([0.8, 0.8, 0.8, 0.8], Price(0.1, 0.1))
    assert choose([[text, model]], flat) == [Choice(1, 4)]
    dear = model._replace(price=Price(0.5, 0.5))
    assert choose([[text, dear]], flat) == [Choice(0, 2)]
    assert choose([[Offer(()), dear]], flat) == [Choice(1, 2)]


def test_one_row_does_not_make_many_others_wait() -> None:
    sure = Offer([0.99] * 8)
    narrow = partial(flat, most=4)
    assert choose([[sure]], narrow) == [Choice(0, 3)]
    assert choose([[sure], [], [], []], narrow) == [None] * 4


def test_what_was_asked_for_is_drafted_as_long_as_it_is_likely() -> None:
    assert asked([Offer([0.9] * 8)], None) == Choice(0, 8)
    assert asked([Offer([0.7] * 8)], None) == Choice(0, 2)
    assert asked([Offer([0.1] * 8)], None) == Choice(0, 1)
    assert asked([], None) is asked([Offer(())], None) is asked([], 3) is None


def test_as_many_are_drafted_as_were_asked_for() -> None:
    assert asked([Offer([0.1] * 3)], 3) == Choice(0, 3)
    assert asked([Offer([0.1])], 3) == Choice(0, 1)
    assert asked([Offer(())], 3) is None


def test_what_is_forced_saves_no_draw_but_is_needed_after_its_token() -> None:
    group = Offer([0.8, 1.0, 1.0])
    assert choose([[group]], flat) == [Choice(0, 3)]
    assert choose([[group]], lambda tokens: 1 + 0.5 * tokens) == [None]  # three places for one draw
    assert choose([[Offer([0.8] * 3)]], lambda tokens: 1 + 0.5 * tokens) == [Choice(0, 3)]
    assert choose([[group]], partial(flat, most=2)) == [None]  # not all of it fits
    assert asked([Offer([0.3, 1.0, 1.0, 0.9])], None) == Choice(0, 3)


def test_what_a_first_token_and_further_ones_take_is_told_apart() -> None:
    experience = Experience(share=0.5)
    assert experience.price(2.0) == Price(1.0, 1.0)
    for count in (1, 3, 2, 4) * 40:
        experience.took(count, 5.0 + 0.5 * (count - 1), plain=2.0)
    assert abs(experience.price(2.0).first - 5.0) < 0.5
    assert abs(experience.price(2.0).of(4) - 6.5) < 0.5


def test_more_tokens_are_tried_again_after_many_drafts_of_one() -> None:
    experience = Experience()
    experience.took(2, 8.0, plain=1.0)
    for _ in range(200):
        experience.took(1, 1.0, plain=1.0)
    assert experience.price(1.0).further < 0.05


def test_the_first_draft_of_a_process_is_not_held_against_the_next() -> None:
    experience = Experience(share=0.1)
    experience.took(3, 50.0, plain=1.0)  # kernels were made
    assert experience.price(1.0) == Price(0.1, 0.1)


def test_what_a_single_draft_took_is_doubted_sooner_than_what_many_did() -> None:
    once, often = Experience(), Experience()
    for experience, count in ((once, 2), (often, 100)):
        for _ in range(count):
            experience.took(1, 8.0, plain=1.0)
        for _ in range(40):
            experience.hope()
    assert once.price(1.0).first < 1.0
    assert often.price(1.0).first > 7.0
