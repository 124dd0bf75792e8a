"""Drafts from text: what they expect, what they cost, and that they leave nothing behind."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen.engine.drafts.drafts import Drafts
from mlxgen.engine.drafts.lookup import OWNERS, RUN, SURE, Earlier, Lookup, Texts
from mlxgen.engine.options import Options
from mlxgen.engine.request.request import Request
from mlxgen.errors import FilterError
from mlxgen.filters import Int32Words
from mlxgen.tokens import Token
from tests.fakes.speaking import PROMPT, reciter

from ...effort import tries


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


def test_text_that_repeats_takes_few_passes() -> None:
    text = list("a fox met a dog. a fox met a dog. a fox met a dog. a fox met a dog.")
    speaker = reciter(text, draft="auto")
    plain = speaker.lm.generate(PROMPT, max_tokens=90, draft="off")
    drafted = speaker.lm.generate(PROMPT, max_tokens=90, draft="ngram")
    assert drafted.text == plain.text == "".join(text)
    assert drafted.usage.forward_passes < 0.6 * plain.usage.forward_passes
