"""Texts that are checked piece by piece while they are written."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from mlxgen import (
    After,
    AllOf,
    Checked,
    DeadEndError,
    FilterError,
    JsonSchema,
    LanguageModel,
    OptionError,
    Regex,
    Session,
)
from mlxgen.tokens import Token
from tests.fakes import sentencepiece_tokenizer
from tests.fakes.checkpoints import tiny_config, tiny_model
from tests.fakes.speaking import PROMPT, Hall, Speaker, reciter

from ..kit import folded, in_every_way, in_session

LINES = [["one"], ["bad", "two"], ["three"]]
TEXT = "one\ntwo\nthree\n"


def author(lines: list[list[str]] = LINES, **options: Any) -> Speaker:
    """It writes line after line: for each of them the first of its texts that was not written there
    and taken back, if it may be drawn at all, and then the end."""

    def say(self: Speaker, generated: list[Token]) -> dict[Token, float]:
        *done, line = self.text(generated).split("\n")
        if len(done) >= len(lines):
            return {self.end: 0.0}
        fitting = [text for text in lines[len(done)] if (text + "\n").startswith(line)]
        ranked = {ord((text + "\n")[len(line)]): -0.5 * i for i, text in enumerate(fitting[::-1])}
        ranked |= {ord((text + "\n")[len(line)]): -0.5 * i for i, text in enumerate(fitting)}
        return ranked or {ord("\n"): 0.0}

    return Speaker([], say, **options)


def no_bad(piece: str, before: str) -> str | None:
    assert not before or before.endswith("\n")
    return "bad" if "bad" in piece else None


CHECK: dict[str, Any] = {"filters": [Checked(no_bad, tries=9)], "seed": 1}


@pytest.mark.parametrize("more", [[], [Regex("(one|bad|two|three|\n)*")]])
def test_a_piece_that_is_complained_about_is_written_again(more: list[Any]) -> None:
    options = {**CHECK, "filters": [*more, *CHECK["filters"]]}
    result = author().lm.generate(PROMPT, **options)
    assert result.text == TEXT and result.usage.rewound_tokens
    assert not result.usage.violates and not any(chunk.exhausted for chunk in result.chunks)
    others = {(r.reason, r.by, r.text) for chunk in result.chunks for r in chunk.rejected}
    assert others == {("check", "bad", "bad\n")}
    assert in_every_way(author(), **options)[0] == TEXT
    assert in_session(author(), max_tokens=200, **options)[0] == TEXT


def test_a_text_that_is_taken_back_fits_into_the_room_or_is_written_again() -> None:
    said = {"": "[", "[": "1", "[1": ",", "[1,": "1 2", "[1,1": "]", "[1,2": "]"}

    def say(self: Speaker, generated: list[Token]) -> dict[Token, float]:
        options = said.get(self.text(generated), " ")
        return {ord(option): -0.1 * i for i, option in enumerate(options)}

    unique = JsonSchema({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True})
    author, ends = Speaker([], say), set()
    for seed in range(8):
        result = author.lm.generate(PROMPT, filters=unique, max_tokens=8, seed=seed)
        assert (result.text, result.finish_reason) == ("[1,2]", "filter")
        ends |= {r.by for chunk in result.chunks for r in chunk.rejected}
    assert ends == {"it violates uniqueItems", "it is longer than there is room for"}


def test_an_ordinary_reader_gets_each_piece_once_it_is_checked() -> None:
    said: list[str] = []

    def check(piece: str, before: str) -> str | None:
        said.append(piece)
        return no_bad(piece, before)

    text = ""
    for chunk in author().lm.stream(PROMPT, filters=[Checked(check, tries=9)], seed=1):
        assert not chunk.retract
        text += chunk.text
        assert "".join(each for each in said if "bad" not in each).startswith(text)
    assert text == TEXT
    chunks = list(author().lm.stream(PROMPT, allow_retract=True, **CHECK))  # one who sees all
    assert folded(chunks) == TEXT and any(chunk.retract for chunk in chunks)
    assert "bad" in "".join(chunk.text for chunk in chunks)


@pytest.mark.parametrize("draft", ["off", "ngram"])
def test_after_some_tries_the_best_one_stands_and_its_chunk_says_so(draft: str) -> None:
    badness = {"bad1\n": 3.0, "bad2\n": 1.0, "bad3\n": 2.0}

    def check(piece: str, before: str) -> tuple[str, float] | None:
        return (piece.strip(), badness[piece]) if piece in badness else None

    speaker, seen = author([["one"], ["bad1", "bad2", "bad3"], ["three"]]), set()
    for seed in range(8):
        options: dict[str, Any] = {"filters": [Checked(check, tries=4)], "seed": seed}
        result = speaker.lm.generate(PROMPT, draft=draft, **options)
        tried = [r.by for c in result.chunks for r in c.rejected if r.reason == "check"]
        best = min([*tried, result.usage.violates], key=lambda by: badness[f"{by}\n"])
        assert result.text == f"one\n{best}\nthree\n" and result.usage.violates == best
        assert [chunk.token for chunk in result.chunks if chunk.exhausted] == [ord("\n")]
        seen.add(best)
    assert "bad2" in seen


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (";", [("a;", ""), ("bc;", "a;"), ("d\n", "a;bc;")]),
        (re.compile("[.;] ?"), [("a;", ""), ("bc;", "a;"), ("d\n", "a;bc;")]),
        (None, [("a;bc;d\n", "")]),
    ],
)
def test_pieces_end_where_they_are_said_to(at: Any, expected: list[tuple[str, str]]) -> None:
    pieces: list[tuple[str, str]] = []
    filters = [Checked(lambda piece, before: pieces.append((piece, before)), at=at)]
    assert author([["a;bc;d"]]).lm.generate(PROMPT, filters=filters).text == "a;bc;d\n"
    assert pieces == expected


def test_an_answer_is_checked_without_the_space_that_it_drops() -> None:
    tokenizer = sentencepiece_tokenizer()
    lm = LanguageModel(tiny_model(tiny_config(len(tokenizer.vocab))), tokenizer)
    pieces: list[str] = []
    check = Checked(lambda piece, before: pieces.append(piece), at=None)
    bias = {token: 1000.0 for token in [lm.vocabulary.token_of(b" the")] if token}
    options: dict[str, Any] = {"filters": [check], "logit_bias": bias, "max_tokens": 2}
    for prompt in ("so", [{"role": "user", "content": "so"}]):
        assert [lm.generate(prompt, **options).text] == pieces
        pieces.clear()


UNIQUE = JsonSchema({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
FINE = Checked(lambda piece, before: None, at="]")


@pytest.mark.parametrize("filters", [[UNIQUE, FINE], [After("=", AllOf(FINE, UNIQUE))]])
def test_where_a_piece_ends_the_text_all_of_it_is_checked(filters: list[Any]) -> None:
    said = "=[1,1]" if isinstance(filters[0], After) else "[1,1]"
    with pytest.raises(DeadEndError, match="uniqueItems"):
        reciter(said).lm.generate(PROMPT, filters=filters)
    check = Checked(lambda piece, before: "bad" if "bad" in piece else None, at=";")
    speaker = reciter(["=", "ok;", "a;bad"])
    assert speaker.lm.generate(PROMPT, filters=[check]).usage.violates == "bad"


def test_a_check_that_takes_long_does_not_stop_the_others() -> None:
    go_on = threading.Event()

    def slow(piece: str, before: str) -> str | None:
        go_on.wait(30)
        return no_bad(piece, before)

    hall, options = Hall(author()), {**CHECK, "filters": [Checked(slow, tries=9)]}
    waits = [hall.submit(max_tokens=None, **options) for _ in range(2)]
    other = hall.submit(max_tokens=12)
    hall.steps(60)
    assert other.request.finish_reason is not None
    assert [hall.texts[each] for each in waits] == ["", ""]
    go_on.set()
    hall.finish()
    alone = author().lm.generate(PROMPT, **CHECK)
    assert [each.request.tokens for each in waits] == [list(alone.tokens)] * 2


def test_a_stream_waits_for_its_check_and_can_be_rewound_and_forked() -> None:
    def slow(piece: str, before: str) -> str | None:
        threading.Event().wait(0.03)
        return no_bad(piece, before)

    with author().lm.stream(PROMPT, filters=[Checked(slow, tries=9)], seed=1) as stream:
        for _ in range(6):
            next(stream)
        (fork,) = stream.fork()
        stream.rewind(to=1)
        for each in (fork, stream):
            assert each.text + "".join(chunk.text for chunk in each) == TEXT


@pytest.mark.parametrize(
    ("check", "problem"), [(lambda *_: 1 / 0, "failed: ZeroDivisionError"), (lambda *_: 5, "5")]
)
def test_a_check_that_fails_ends_the_text_with_its_error_before_it(
    check: Any, problem: str
) -> None:
    with pytest.raises(FilterError, match=problem):
        author().lm.generate(PROMPT, filters=[Checked(check)])
    session = Session(author().tokenizer, filters=[Checked(check, at="b")])
    session.push_token(ord("a"))
    with pytest.raises(FilterError, match=problem):
        session.push_token(ord("b"))
    assert session.tokens == [ord("a")]


@pytest.mark.parametrize(
    "wrong", [{"check": 5}, {"check": no_bad, "at": ""}, {"check": no_bad, "tries": 0}]
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        Checked(**wrong)
    assert caught.value.field == "filters"
