"""Texts that are checked piece by piece while they are written."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import mlxgen
from mlxgen import Checked, FilterError, OptionError, Regex, Session
from mlxgen.engine.chunk import Chunk
from mlxgen.tokens import Token
from tests.fakes.speaking import PROMPT, Hall, Speaker, letters

GOOD = "a = 1\nb = 2\nc = a + b\n"


def author(lines: list[list[str]], **options: Any) -> Speaker:
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


def folded(chunks: Iterable[Chunk]) -> str:
    text = ""
    for chunk in chunks:
        text = text[: len(text) - chunk.retract] + chunk.text
    return text


LINES = [["one"], ["bad", "two"], ["three"]]


def test_a_piece_that_is_complained_about_is_written_again() -> None:
    result = author(LINES).lm.generate(PROMPT, filters=[Checked(no_bad, tries=9)], seed=1)
    assert result.text == "one\ntwo\nthree\n"
    assert result.usage.rewound_tokens
    assert not result.usage.violates
    assert not any(chunk.exhausted for chunk in result.chunks)
    [*others] = [r for chunk in result.chunks for r in chunk.rejected]
    assert {(r.reason, r.by, r.text) for r in others} == {("check", "bad", "bad\n")}


def test_an_ordinary_reader_gets_each_piece_once_it_is_checked() -> None:
    said: list[str] = []

    def check(piece: str, before: str) -> str | None:
        said.append(piece)
        return no_bad(piece, before)

    text = ""
    for chunk in author(LINES).lm.stream(PROMPT, filters=[Checked(check, tries=9)], seed=1):
        assert not chunk.retract
        text += chunk.text
        assert "".join(each for each in said if "bad" not in each).startswith(text)
    assert text == "one\ntwo\nthree\n"


def test_who_takes_retractions_sees_what_is_taken_back() -> None:
    chunks = list(
        author(LINES).lm.stream(
            PROMPT, filters=[Checked(no_bad, tries=9)], seed=1, allow_retract=True
        )
    )
    assert folded(chunks) == "one\ntwo\nthree\n"
    assert "bad" in "".join(chunk.text for chunk in chunks)
    assert any(chunk.retract for chunk in chunks)


@pytest.mark.parametrize("draft", ["off", "ngram"])
def test_after_some_tries_the_best_one_stands_and_its_chunk_says_so(draft: str) -> None:
    badness = {"bad1\n": 3.0, "bad2\n": 1.0, "bad3\n": 2.0}

    def check(piece: str, before: str) -> tuple[str, float] | None:
        return (piece.strip(), badness[piece]) if piece in badness else None

    lines = [["one"], ["bad1", "bad2", "bad3"], ["three"]]
    seen = set()
    for seed in range(8):
        result = author(lines).lm.generate(
            PROMPT, filters=[Checked(check, tries=4)], seed=seed, draft=draft
        )
        tried = [r.by for c in result.chunks for r in c.rejected if r.reason == "check"]
        best = min([*tried, result.usage.violates], key=lambda by: badness[f"{by}\n"])
        assert result.text == f"one\n{best}\nthree\n"
        assert result.usage.violates == best
        assert [chunk.token for chunk in result.chunks if chunk.exhausted] == [ord("\n")]
        seen.add(best)
    assert "bad2" in seen


@pytest.mark.parametrize("at", [";", re.compile("[.;] ?")])
def test_pieces_end_where_they_are_said_to(at: Any) -> None:
    pieces: list[tuple[str, str]] = []
    speaker = author([["a;bc;d"]])
    filters = [Checked(lambda piece, before: pieces.append((piece, before)), at=at)]
    assert speaker.lm.generate(PROMPT, filters=filters).text == "a;bc;d\n"
    assert pieces == [("a;", ""), ("bc;", "a;"), ("d\n", "a;bc;")]


def test_without_an_end_of_pieces_the_whole_text_is_one() -> None:
    pieces: list[str] = []

    def check(piece: str, before: str) -> str | None:
        pieces.append(piece)
        return "bad" if "bad" in piece else None

    result = author(LINES).lm.generate(PROMPT, filters=[Checked(check, at=None, tries=9)], seed=2)
    assert result.text == "one\ntwo\nthree\n" == pieces[-1]


def test_it_holds_together_with_other_filters_and_in_batches() -> None:
    lm = author(LINES).lm
    filters: list[Any] = [Regex("(one|bad|two|three|\n)*"), Checked(no_bad, tries=9)]
    once = lm.generate(PROMPT, filters=filters, seed=1)
    assert once.text == "one\ntwo\nthree\n"
    several = lm.batch([PROMPT] * 3, filters=filters, seed=1).run()
    assert [each.text for each in several] == [once.text] * 3


def test_a_check_that_takes_long_does_not_stop_the_others() -> None:
    go_on = threading.Event()

    def slow(piece: str, before: str) -> str | None:
        go_on.wait(30)
        return no_bad(piece, before)

    hall = Hall(author(LINES))
    waits = hall.submit(filters=[Checked(slow, tries=9)], seed=1, max_tokens=None)
    other = hall.submit(max_tokens=12)
    third = hall.submit(filters=[Checked(slow, tries=9)], seed=1, max_tokens=None)
    for _ in range(60):
        hall.step()
    assert other.request.finish_reason is not None
    assert (hall.texts[waits], hall.texts[third]) == ("", "")
    go_on.set()
    hall.finish()
    assert hall.texts[waits] == hall.texts[third] == "one\ntwo\nthree\n"
    alone = author(LINES).lm.generate(PROMPT, filters=[Checked(no_bad, tries=9)], seed=1)
    assert list(waits.request.tokens) == list(alone.tokens)


def test_a_stream_waits_for_its_check_and_can_be_rewound_and_forked() -> None:
    def slow(piece: str, before: str) -> str | None:
        threading.Event().wait(0.03)
        return no_bad(piece, before)

    filters = [Checked(slow, tries=9)]
    with author(LINES).lm.stream(PROMPT, filters=filters, seed=1) as stream:
        for _ in range(6):
            next(stream)
        (fork,) = stream.fork()
        stream.rewind(to=1)
        for each in (fork, stream):
            text = each.text + "".join(chunk.text for chunk in each)
            assert text == "one\ntwo\nthree\n"


def test_a_check_that_fails_ends_the_text_with_its_error() -> None:
    def fails(piece: str, before: str) -> str | None:
        raise ValueError("no compiler")

    with pytest.raises(FilterError, match="fails failed: ValueError: no compiler"):
        author(LINES).lm.generate(PROMPT, filters=[Checked(fails)])
    with pytest.raises(FilterError, match="returned 5; expected a string"):
        author(LINES).lm.generate(PROMPT, filters=[Checked(lambda piece, before: 5)])  # type: ignore[arg-type,return-value]


def test_a_session_checks_too() -> None:
    speaker = author(LINES)
    session = Session(
        speaker.tokenizer, prompt=PROMPT, filters=[Checked(no_bad, tries=9)], seed=1, max_tokens=200
    )
    while session.finish_reason is None:
        logits = np.full(speaker.vocabulary.size, -50.0, dtype=np.float32)
        for token, logit in speaker.model.script(tuple(session.history)).items():  # type: ignore[union-attr]
            logits[token] = logit
        session.push_logits(logits)
    assert session.text == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    "wrong", [{"check": 5}, {"check": no_bad, "at": ""}, {"check": no_bad, "tries": 0}]
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="filters: Checked: "):
        Checked(**wrong)


def test_nothing_is_checked_that_is_not_asked_for() -> None:
    assert author([[letters(5)]]).lm.generate(PROMPT).text == letters(5) + "\n"
    assert mlxgen.Checked is Checked
