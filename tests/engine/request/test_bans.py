"""Bans that cannot be kept, and what a consumer takes back or has already; what bans leave of texts
is in the table of generations."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mlxgen import DeadEndError, OptionError, Regex
from tests.fakes.speaking import PROMPT, Speaker, endless, reciter, talker

SO = {"": ["so"], "so": [" so"], "so so": [" sad", " good"], "so good": [], "so so good": []}


def test_a_character_split_over_tokens_is_taken_back_from_its_first_byte() -> None:
    smile = "😀".encode()

    def script(self: Speaker, generated: list[int]) -> list[int]:
        at = len(generated)
        done = generated[:1] == [ord("n")] or at >= 4
        return [self.end] if done else [smile[at], ord("n")]

    speaker = Speaker([], script)
    assert speaker.lm.generate(PROMPT).text == "😀"
    result = speaker.lm.generate(PROMPT, banned="😀")
    assert (result.text, result.usage.rewound_tokens) == ("n", 3)


def test_bans_that_every_text_runs_into_end_in_an_error_that_says_so() -> None:
    with pytest.raises(DeadEndError, match="position 0"):
        talker({"": ["a"]}).lm.generate(PROMPT, banned=[re.compile("(?s).")], min_tokens=3)
    stream = endless().lm.stream(PROMPT, banned=[re.compile("(?s).{9}")], max_tokens=50)
    for most in (2_000, 4_000):
        with pytest.raises(DeadEndError, match=r"\d+ draws of a text .*ban less"):
            list(stream)
        assert most // 2 < stream.usage.rewound_tokens < most
        stream.rewind(to=0)  # the account begins anew, and the stream can be used


def test_a_ban_that_begins_in_the_prefix_says_so() -> None:
    speaker = talker(SO)
    with pytest.raises(DeadEndError, match=r"'o so sad' begins inside the prefix, at token 0"):
        speaker.lm.generate(PROMPT, banned="o so sad", prefix=speaker.tokens(["so", " so"]))


def test_an_expression_whose_search_has_no_end_fails_its_row_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mlxgen.text.expression.SECONDS", 0.05)
    speaker, slow = reciter(["aaa", "a" * 60, "c"]), re.compile("(a|aa)+b")
    with speaker.lm.stream(PROMPT, banned=[slow]) as stream:
        with pytest.raises(OptionError, match="takes more than"):
            list(stream)
        assert stream.tokens == []  # all of it may still be banned
    batch = speaker.lm.batch([PROMPT, PROMPT], each=[{"banned": slow}, {}])
    with pytest.raises(OptionError, match="takes more than"):
        list(batch)
    list(batch)
    assert batch.results[0] is None and batch.results[1] is not None
    assert batch.results[1].text == "a" * 63 + "c"


def test_some_bans_stand_if_they_are_weak_the_same_ones_for_a_seed() -> None:
    def texts(strength: float) -> list[str]:
        lm = talker({"": ["a", "b"]}).lm
        asked: list[dict[str, Any]] = [
            {"banned": "a", "ban_strength": strength, "seed": seed} for seed in range(40)
        ]
        return [lm.generate(PROMPT, **each).text for each in asked]

    assert 0 < texts(0.75).count("a") < 20 and texts(0.75) == texts(0.75)
    assert texts(1.0).count("a") == 0


# ---- consumers ---------------------------------------------------------------------------------


def test_what_a_consumer_took_back_is_drawn_anew_though_it_has_not_come_so_far_again() -> None:
    stream = reciter(list("abcdefghij")).lm.stream(PROMPT, hold_tokens=2)
    for seen, kept in ((6, 2), (4, 3)):
        while len(stream.tokens) < seen:
            next(stream)
        stream.rewind(to=kept)
    assert [(c.index, c.attempts) for c in stream][:4] == [(3, 2), (4, 1), (5, 1), (6, 0)]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("a<end>", {}, "text_ended"),
    ("ab", {"stop": ["b"]}, "text_ended"),
    ("ab", {"banned": ["ab"]}, "text_banned"),
    ("ab", {"filters": [Regex("a+")]}, "token_not_allowed"),
    ("a<end>", {"filters": [Regex("aab")]}, "end_not_allowed"),
]


def test_a_prefix_that_cannot_be_gone_on_with_says_why_and_where() -> None:
    speaker = talker({"": ["a"]})
    for prefix, options, code in REFUSED:
        tokens = speaker.tokens(re.findall("<end>|.", prefix))
        with pytest.raises(OptionError) as error:
            next(speaker.lm.stream(PROMPT, prefix=tokens, **options))
        assert (error.value.field, error.value.code, error.value.index) == ("prefix", code, 1)
