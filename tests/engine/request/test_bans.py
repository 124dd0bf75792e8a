"""Bans: what is taken back for them, and how far; rewinds of a consumer, forks and prefixes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mlxgen import DeadEndError, OptionError, Regex, Rejected, RewindError
from tests.fakes.speaking import PROMPT, Speaker, endless, reciter, talker

SO = {"": ["so"], "so": [" so"], "so so": [" sad", " good"], "so good": [], "so so good": []}
ALSO = {"": ["so"], "so": [" so", " good"], "so so": [" sad"]}
AB = {"": ["a"], "a": ["b", "x"], "ab": ["c"], "ax": ["d"]}
ENDS = {"": ["a "], "a ": ["foo", "bar"], "a foo": ["END"], "a bar": ["END"]}


CASES: list[tuple[dict[str, list[str]], dict[str, Any], str]] = [
    (SO, {}, "so so sad"),
    (SO, {"banned": " sad"}, "so so good"),  # no innocent token is taken back
    (ALSO, {"banned": " so sad"}, "so good"),  # " so" holds its first character
    (ALSO, {"banned": "so sad"}, "so good"),  # it begins inside the second " so"
    (SO, {"banned": re.compile("sad$")}, "so so good"),
    (AB, {"banned": ["bc"]}, "axd"),
    ({"": ["x"], "x": ["AB", "y"]}, {"banned": re.compile("a", re.I)}, "xy"),
    ({"": ["x"], "x": ["AB", "y"]}, {"banned": "a"}, "xAB"),
    ({"": ["x"], "x": ["a", "c"], "xa": ["b"]}, {"banned": "ab", "max_tokens": 3}, "xc"),
    (ENDS, {"stop": "END"}, "a foo"),
    (ENDS, {"stop": "END", "banned": re.compile("foo$")}, "a bar"),
    ({"": ["fEND", "a"], "a": ["END"]}, {"stop": "END", "banned": re.compile(r"f\Z")}, "a"),
]


def test_a_ban_excludes_the_token_with_its_first_character() -> None:
    for choices, options, text in CASES:
        lm = talker(choices).lm
        chunks = list(lm.stream(PROMPT, **options))  # nothing of it is ever delivered
        assert "".join(chunk.text for chunk in chunks) == text
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        assert [each.text for each in lm.batch([PROMPT] * 2, **options).run()] == [text] * 2


def test_a_banned_token_is_named_and_a_reader_is_told_what_to_delete() -> None:
    lm = talker(AB).lm
    chunks = list(lm.stream(PROMPT, banned=["bc"]))
    assert [chunk.rejected for chunk in chunks[:3]] == [(), (Rejected(ord("b"), "ban", "bc"),), ()]
    chunks = list(lm.stream(PROMPT, banned="abc", allow_retract=True))
    assert [c.text for c in chunks[:2]] == ["a", "b"] and sum(c.retract for c in chunks) == 2


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


def test_a_consumer_may_rewind_between_two_chunks_and_after_the_end() -> None:
    speaker = reciter(["a", "é", "b", "st", "op", "x"], prompt_length=40)
    stream = speaker.lm.stream([63] * 40, stop="stop")
    for _ in range(3):
        next(stream)
    passes = speaker.model.passes
    stream.rewind(tokens=2)
    assert (stream.text, len(stream.tokens)) == ("a", 1)
    assert "".join(c.text for c in stream) == "éb"
    assert {len(fed) for fed in speaker.model.fed[passes:]} == {1}  # only what was taken back
    stream.rewind(tokens=1)
    assert stream.finish_reason is None
    assert [c.stop for c in stream] == ["stop"] and stream.text == "aéb"
    with pytest.raises(RewindError) as error:
        stream.rewind(tokens=9)
    assert error.value.possible == 5
    stream.rewind(to=0)
    assert "".join(c.text for c in stream) == "aéb"


def test_what_a_consumer_took_back_is_drawn_anew_though_it_has_not_come_so_far_again() -> None:
    stream = reciter(list("abcdefghij")).lm.stream(PROMPT, hold_tokens=2)
    for seen, kept in ((6, 2), (4, 3)):
        while len(stream.tokens) < seen:
            next(stream)
        stream.rewind(to=kept)
    assert [(c.index, c.attempts) for c in stream][:4] == [(3, 2), (4, 1), (5, 1), (6, 0)]


def test_a_prefix_is_taken_as_generated_and_its_text_never_delivered_again() -> None:
    speaker = reciter(["a", "b", "st", "op", "c"])
    whole = speaker.lm.generate(PROMPT, stop="stop", max_tokens=4)
    stream = speaker.lm.stream(PROMPT, stop="stop", max_tokens=4, prefix=whole.tokens[:3])
    assert [(c.index, c.stop) for c in stream] == [(3, "stop")]
    stream = speaker.lm.stream(PROMPT, stop="bx", max_tokens=5, prefix=whole.tokens[:2])
    assert next(stream).text == "st"
    stream.rewind(to=2)  # to where the stop could still begin, in the prefix
    assert stream.text == ""
    assert "".join(chunk.text for chunk in stream) == stream.text == "stopc"
    ends = reciter(["a", "<end>", "b", "c"])
    options: dict[str, Any] = {"ignore_eos": True, "max_tokens": 5}
    tokens = ends.lm.generate(PROMPT, **options).tokens
    for count in range(5):
        assert ends.lm.generate(PROMPT, prefix=tokens[:count], **options).tokens == tokens


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
