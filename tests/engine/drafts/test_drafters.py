"""Who is asked for drafts and for how many tokens, and what is drafted from text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen.engine.drafts.drafts import LONGEST_REST, MOST_ROWS, REST, WIDEST, Drafts, Guess, Policy
from mlxgen.engine.drafts.lookup import OWNERS, RUN, SURE, Earlier, Lookup, Texts
from mlxgen.engine.options import Options
from mlxgen.engine.request.request import Request
from mlxgen.errors import FilterError
from mlxgen.filters import Int32Words
from mlxgen.tokens import Token
from tests.fakes.drafting import Told, ToldOther
from tests.fakes.speaking import PROMPT, endless, reciter

from ...effort import tries

# ---- who is asked -------------------------------------------------------------------------------


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
    told, silent = Told(following), ToldOther(following, lambda length: False)
    for drafters in ([told, ToldOther(following)], [silent, told]):
        guess = Drafts(drafters).propose(request_of(), 1, SECOND)
        assert guess is not None and guess.drafter == "told"


def test_the_time_of_a_step_that_waited_in_vain_for_a_draft_counts_as_well() -> None:
    drafter = Told(following, lambda length: length % 2 == 0)  # it expects one that never comes
    drafts, request = Drafts([drafter]), request_of()
    while not drafter.policy.rests:
        assert drafts.expects(request, 1, SECOND)
        assert drafts.propose(request, 1, SECOND) is None
        drafts.saw(0, 0, 1.5)
    waits = [drafts.expects(request, 1, SECOND) for _ in range(REST)]
    assert waits == [False] * (REST - 1) + [True]


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
    for stood, least, most in ((99, 16, 16), (3, 3, 4), (0, 1, 1)):
        drafted(policy, 20, lambda _, stood=stood: stood, 1.0)  # type: ignore[misc]
        assert least <= policy.tokens(16) <= most


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


class Desk:
    """Requests of one model, and drafters that share what they learn."""

    def __init__(self, lm: mlxgen.LanguageModel | None = None) -> None:
        self.lm = lm or reciter([]).lm
        self.texts = Texts()

    def drafter(self, patience: int = 0) -> Lookup:
        return Lookup(self.texts, patience)

    def request(self, prompt: str | list[Token] = "?", **options: Any) -> Request:
        ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
        return self.lm.runtime.prepare(ids, Options.of({"max_tokens": 500, **options}))


DESK = Desk()


@pytest.fixture
def desk() -> Desk:
    return Desk(DESK.lm)


def proposed(drafter: Lookup, request: Request, count: int = 16) -> str:
    guess = Drafts([drafter], count, wanted=True).propose(request, 1, 0.0)
    return "" if guess is None else bytes(guess.tokens).decode()


# ---- what is expected ----------------------------------------------------------------------------


class Naive:
    """What comes after the newest tokens where they came last: in the own text, or in another."""

    def __init__(self, text: list[Token]) -> None:
        self.text, self.own = [*text, -1], list[Token]()
        self.followed: tuple[list[Token], int] | None = None

    def expected(self, new: list[Token]) -> list[Token]:
        """After these tokens, which have come."""
        self.own += new
        if self.followed is not None:
            source, at = self.followed
            goes_on = source[at : at + len(new)] == new
            self.followed = (source, at + len(new)) if goes_on else None
        if self.followed is None:
            found = [
                (source, places)
                for source in (self.own, self.text)
                if (places := self.places(source))
            ]
            self.followed = (found[0][0], found[0][1][-1]) if found else None
        return [] if self.followed is None else self.run(*self.followed)

    def places(self, source: list[Token]) -> list[int]:
        """All places after tokens like the newest ones."""
        run = self.own[-RUN:]
        places = range(RUN, len(source)) if len(run) == RUN else []
        return [i for i in places if source[i - RUN : i] == run and source[i] >= 0]

    def run(self, source: list[Token], at: int) -> list[Token]:
        goes = list(takewhile(lambda token: token >= 0, source[at : at + 16]))
        if goes and source is self.own and at + len(goes) == len(self.own):
            goes *= 16  # the text goes round
        return goes[:16]


LETTERS = st.sampled_from(b"abc")
TEXT = st.lists(st.one_of(LETTERS, st.just(-1)), max_size=30)  # below 0: of an image


@settings(max_examples=tries(400))
@given(TEXT, st.lists(st.lists(LETTERS, max_size=7), max_size=9), st.integers(0, 9))
def test_it_proposes_what_came_last_after_the_same_tokens_and_after_a_way_back_what_came_once(
    text: list[Token], moves: list[list[Token]], back: int
) -> None:
    desk = Desk(DESK.lm)
    desk.texts.add(text)
    request, drafter, naive = desk.request("abc"), desk.drafter(), Naive(text)
    assert proposed(drafter, request) == bytes(naive.expected([*b"abc"])).decode()
    for new in moves:
        for token in new:
            request.advance(token)
        expected = bytes(naive.expected(new)).decode()
        assert proposed(drafter, request) == expected
        twin, copy = drafter.fork(), request.fork(1)
        copy.rewind(max(3, len(copy.history) - back))
        for token in new:
            copy.advance(token)
        once = Naive(text)
        once.own = list(copy.history)
        found = [
            once.run(source, i) for source in (once.own, once.text) for i in once.places(source)
        ]
        assert proposed(twin, copy) in ["", *[bytes(run).decode() for run in found]]
        assert proposed(drafter, request) == expected  # which changed nothing here


def test_the_end_of_the_text_and_of_the_budget_are_not_passed(desk: Desk) -> None:
    ids = [*b"one two", *desk.lm.vocabulary.eos, *b"one t"]
    for budget, expected in ((90, "wo"), (2, "w"), (1, "")):
        assert proposed(desk.drafter(), desk.request(ids, max_tokens=budget)) == expected


def test_what_a_grammar_does_not_allow_is_never_proposed(desk: Desk) -> None:
    for text, expected in (("abcd abcf abcee abc", "ee"), ("abce abcf abc", "")):
        request = desk.request(text, filters=mlxgen.Regex("[eg]+"))
        assert proposed(desk.drafter(), request) == expected


def test_a_patient_one_has_nothing_to_say_before_a_copy_has_gone_on_for_long(desk: Desk) -> None:
    text = "one two three, four"
    desk.drafter().learn(desk.request(text).history)
    drafter, request = desk.drafter(SURE), desk.request("one")
    for token in text[len("one") :].encode():
        assert bool(proposed(drafter, request, 1)) == (request.position >= SURE)
        request.advance(token)
    assert not proposed(drafter, request, 1)  # nothing came after it


def test_texts_are_their_owners_and_those_who_were_away_for_longest_are_forgotten(
    desk: Desk,
) -> None:
    earlier, request = Earlier(), desk.request("the fox and the d")
    earlier.drafter("ann").learn(desk.request("a fox and the dog").history)
    assert proposed(earlier.drafter("bob"), request) == ""
    for i in range(OWNERS - 2):
        earlier.drafter(str(i))
    assert proposed(earlier.drafter("ann"), request, 2) == "og"
    for i in range(OWNERS):
        earlier.drafter(str(i))
    assert proposed(earlier.drafter("ann"), request) == ""


def test_of_more_texts_than_there_is_room_for_the_latest_stay(desk: Desk) -> None:
    texts, request = Texts(40), desk.request("fox")
    for said in ("the fox ran away", "she has a dog and a cat", "and the fox got them"):
        texts.add([*said.encode()])
        assert len(texts.places.tokens) <= 40
    assert proposed(Lookup(texts), request, 4) == " got"
    assert proposed(Lookup(texts), desk.request("fox r"), 4) == ""


# ---- filters of one's own ------------------------------------------------------------------------


class Touchy:
    """A filter that raises after a token, and can go back or not."""

    def __init__(self, error: type[Exception] | None) -> None:
        self.fed: list[int] = []
        self.error = error
        self.resets = 0

    def fill(self, row: Int32Words) -> bool:
        if self.error is not None and ord("r") in self.fed[-2:]:
            raise self.error("no")
        return False

    def advance(self, token: int) -> None:
        self.fed.append(token)

    def can_end(self) -> bool:
        return True

    def reset(self) -> None:
        self.resets += 1
        self.fed.clear()


class Patient(Touchy):
    def rewind(self, to: int) -> None:
        del self.fed[to:]


class Own:
    def __init__(self, made: type[Touchy]) -> None:
        self.made = made

    def bind(self, tokenizer: Any, vocab_size: int) -> Touchy:
        return self.made(None)


@pytest.mark.parametrize("error", [FilterError, ValueError])
def test_a_filter_that_raises_during_a_walk_ends_it(desk: Desk, error: type[Exception]) -> None:
    filter = Patient(error)
    request = desk.request("the river, the ri", filters=[filter])
    assert request.constraint is not None and request.constraint.mask() is None
    guess = desk.drafter().propose(request, 8)
    assert guess is not None and filter.fed == []
    guess.look(request)
    assert bytes(guess.tokens[: len(guess.draws) - 1]) == b"ve"
    assert filter.fed == []
    request.check_integrity()


class Stuck(Patient):
    """Fails to go back, so often."""

    left = 1

    def rewind(self, to: int) -> None:
        if to < len(self.fed) and self.left:
            self.left -= 1
            raise ValueError("stuck")
        super().rewind(to)


@pytest.mark.parametrize("is_for_ever", [False, True])
def test_a_filter_that_fails_to_go_back_adds_no_tokens(
    is_for_ever: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stuck, "left", 1000 if is_for_ever else 1)
    text = "one two three, one two four, one two five."
    speaker = reciter([*text], draft="auto")
    stream = speaker.lm.stream(PROMPT, draft="ngram", filters=[Own(Stuck)], max_tokens=len(text))
    if is_for_ever:
        with pytest.raises(ValueError, match="stuck"):
            list(stream)
        assert text.startswith(stream.text)
    else:
        assert "".join(chunk.text for chunk in stream) == text


def test_filters_that_are_fed_the_whole_text_to_go_back_are_not_walked(desk: Desk) -> None:
    filter = Touchy(None)
    request = desk.request("the river, the ri", filters=[filter])
    assert request.constraint is not None and request.constraint.mask() is None
    assert not desk.drafter().expects(request)
    assert desk.drafter().propose(request, 8) is None
    assert filter.resets == 0
