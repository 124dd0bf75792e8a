"""Drafts from text: what they expect, what they cost, and that they leave nothing behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

import mlxgen
from mlxgen.engine.drafts.drafts import Drafts
from mlxgen.engine.drafts.lookup import OWNERS, SURE, Earlier, Lookup, Texts
from mlxgen.engine.options import Options
from mlxgen.engine.request.accept import fast_forward, push, start
from mlxgen.engine.request.objections import Verdict
from mlxgen.engine.request.request import Request
from mlxgen.errors import FilterError
from mlxgen.filters import Int32Words
from mlxgen.sampling import PostSamplingResult
from tests.fakes import alphabet_tokenizer
from tests.fakes.checkpoints import tiny_config, tiny_model
from tests.fakes.speaking import PROMPT, Speaker, reciter

COLOURS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,9}$"},
        "colour": {"enum": ["amber", "azure", "beige"]},
        "size": {"enum": ["big", "small"]},
    },
    "required": ["name", "colour", "size"],
    "additionalProperties": False,
}


def record(name: str, colour: str, size: str) -> str:
    return json.dumps({"name": name, "colour": colour, "size": size})


def colours() -> mlxgen.JsonSchema:
    return mlxgen.JsonSchema(COLOURS, whitespace=None, separators=(", ", ": "))


class Desk:
    """Requests of one model, and drafters that share what they learn."""

    def __init__(self, speaker: Speaker) -> None:
        self.speaker = speaker
        self.shared = (Texts(),)

    def drafter(self) -> Lookup:
        return Lookup(*self.shared)

    def request(self, prompt: str = "?", **options: Any) -> Request:
        ids = list(prompt.encode())
        request = self.speaker.lm.runtime.prepare(ids, Options.of({"max_tokens": 500, **options}))
        assert start(request) is Verdict.NEXT
        return request

    def told(self, drafter: Lookup, request: Request, text: str) -> None:
        """Take in a text token by token, and have the drafter look on, as the step loop does."""
        for token in text.encode()[request.position :]:
            if request.position < len(text) and token == text.encode()[request.position]:
                drafter.expects(request)
                if push(request, token) is not Verdict.NEXT:
                    break
                fast_forward(request)
        drafter.learn(request.history)


@pytest.fixture(scope="module")
def mute() -> Speaker:
    return reciter([])


@pytest.fixture
def desk(mute: Speaker) -> Desk:
    return Desk(mute)


def proposed(drafter: Lookup, request: Request, count: int = 16) -> str:
    guess = Drafts([drafter], count, wanted=True).propose(request, 1, 0.0)
    return "" if guess is None else bytes(guess.tokens).decode()


# ---- what is expected ------------------------------------------------------------------------


def test_what_came_after_the_same_tokens_is_proposed(desk: Desk) -> None:
    request = desk.request("the fox and the dog, the fo", max_tokens=100)
    drafter = desk.drafter()
    assert proposed(drafter, request, 8) == "x and th"
    assert drafter.expects(request)
    assert drafter.propose(desk.request("abcdefgh"), 8) is None


def test_the_end_of_the_text_and_of_the_budget_are_not_passed(desk: Desk) -> None:
    end = desk.speaker.end
    ids = [*b"one two", end, *b"one t"]
    lm = desk.speaker.lm
    for options, expected in (({}, "wo"), ({"max_tokens": 2}, "w"), ({"max_tokens": 1}, "")):
        request = lm.runtime.prepare(ids, Options.of({"max_tokens": 90, **options}))
        assert proposed(desk.drafter(), request) == expected


def test_other_texts_of_the_same_owner_are_copied(desk: Desk) -> None:
    first = desk.drafter()
    first.learn(desk.request("a small boat on the river").history)
    request = desk.request("he saw a small b")
    assert proposed(desk.drafter(), request) == "oat on the river"
    assert desk.drafter().propose(request, 8) is not None
    assert Lookup(Texts()).propose(request, 8) is None


def test_what_filters_do_not_allow_is_never_proposed(desk: Desk) -> None:
    request = desk.request("abcd abcf abcee abc", filters=mlxgen.Regex("[eg]+"))
    assert proposed(desk.drafter(), request) == "ee"
    request = desk.request("abce abcf abc", filters=mlxgen.Regex("[eg]+"))
    assert proposed(desk.drafter(), request) == ""


# ---- it leaves nothing behind ----------------------------------------------------------------


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
    mute: Speaker, is_for_ever: bool, monkeypatch: pytest.MonkeyPatch
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


def test_a_copy_is_followed_past_what_came_elsewhere_as_well(desk: Desk) -> None:
    desk.drafter().learn(desk.request("a fox ran by. b dog ran; c cat ran on").history)
    drafter, request = desk.drafter(), desk.request("a fo")
    for token in b"x ran":
        assert proposed(drafter, request, 1) == chr(token)
        request.advance(token)
    assert proposed(drafter, request, 4) == " by."
    assert proposed(desk.drafter(), request, 3) == " on"
    request.advance(ord("!"))
    assert proposed(drafter, request) == ""


def test_a_patient_one_has_nothing_to_say_before_a_copy_has_gone_on_for_long(desk: Desk) -> None:
    text = "one two three, four"
    desk.drafter().learn(desk.request(text).history)
    drafter, request = Lookup(*desk.shared, SURE), desk.request("one")
    for token in text[len("one") :].encode():
        assert bool(proposed(drafter, request, 1)) == (request.position >= SURE)
        request.advance(token)
    assert not proposed(drafter, request, 1)  # nothing came after it


# ---- the text stays the same -----------------------------------------------------------------


def strays(result: PostSamplingResult) -> None:
    if result.position % 5 == 4:
        result.feed_filters = False


def replaces(result: PostSamplingResult) -> None:
    if result.position % 7 == 3 and result.attempt == 0:
        result.resample = True


def test_texts_of_one_owner_are_not_shown_to_another(mute: Speaker) -> None:
    lm, earlier = mute.lm, Earlier()
    drafters = [earlier.drafter(owner) for owner in ("ann", "ann", "bob")]
    request = lm.runtime.prepare([*b"the fox and the d"], Options.of({"max_tokens": 9}))
    drafters[0].learn(lm.runtime.prepare([*b"a fox and the dog"], Options.of({})).history)
    assert proposed(drafters[1], request, 2) == "og"
    assert drafters[2].propose(request, 2) is None


def test_the_texts_of_those_who_were_away_for_longest_are_forgotten(mute: Speaker) -> None:
    lm, earlier = mute.lm, Earlier()
    text = lm.runtime.prepare([*b"the fox and the dog"], Options.of({"max_tokens": 9}))
    earlier.drafter("ann").learn(text.history)
    request = lm.runtime.prepare([*b"the fox and the d"], Options.of({"max_tokens": 9}))
    for i in range(OWNERS - 1):
        earlier.drafter(str(i))
    assert proposed(earlier.drafter("ann"), request, 2) == "og"
    for i in range(OWNERS):
        earlier.drafter(str(i))
    assert earlier.drafter("ann").propose(request, 2) is None


GENERATED: dict[str, dict[str, Any]] = {
    "a schema": {"filters": colours()},
    "an answer with log-probabilities": {"filters": colours(), "top_logprobs": 2},
    "strays": {"filters": mlxgen.Regex("([a-z ]{3}[0-9])*"), "hooks": strays},
    "declined tokens": {"filters": colours(), "hooks": replaces, "hold_tokens": 2},
    "a way to the end": {"filters": colours(), "close_json": True, "max_tokens": 60},
    "bans": {"filters": colours(), "banned": ["mb"]},
    "penalties": {"filters": colours(), "repetition_penalty": 1.3},
    "a filter of one's own": {"filters": Own(Patient)},
    "one that cannot go back": {"filters": Own(Touchy)},
}


@pytest.fixture(scope="module")
def small() -> mlxgen.LanguageModel:
    tokenizer = alphabet_tokenizer()
    return mlxgen.LanguageModel(tiny_model(tiny_config(len(tokenizer))), tokenizer)


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("sampled", [{"temperature": 0}, {"temperature": 1.0, "seed": 5}])
def test_the_text_is_the_same_again_and_again(
    small: mlxgen.LanguageModel, name: str, sampled: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"max_tokens": 40, **sampled, **GENERATED[name]}
    prompt = list(b"A red fox. A red fox. A red")
    plain = small.generate(prompt, draft="off", **options)
    for _ in range(3):  # it has seen it the second time
        drafted = small.generate(prompt, draft="ngram", **options)
        assert (drafted.tokens, drafted.text) == (plain.tokens, plain.text)
        assert drafted.finish_reason == plain.finish_reason


def speakers(text: Sequence[str]) -> Speaker:
    return reciter([*text], draft="auto")


def test_text_that_repeats_takes_few_passes() -> None:
    text = list("a fox met a dog. a fox met a dog. a fox met a dog. a fox met a dog.")
    speaker = speakers(text)
    plain = speaker.lm.generate(PROMPT, max_tokens=90, draft="off")
    drafted = speaker.lm.generate(PROMPT, max_tokens=90, draft="ngram")
    assert drafted.text == plain.text == "".join(text)
    assert drafted.usage.forward_passes < 0.6 * plain.usage.forward_passes
