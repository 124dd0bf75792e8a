"""Stops and bans: a table of texts, and what both matchers have in common."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxgen.errors import OptionError, StateError
from mlxgen.text import BanMatcher, StopMatcher, TextDecoder
from mlxgen.tokens import Vocabulary
from tests.fakes import alphabet_tokenizer

TABLE = Path(__file__).parent.parent / "data" / "matches.jsonl"
CASES = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
FLAGS = {"i": re.I, "s": re.S, "m": re.M, "x": re.X, "a": re.A}


def pattern(text: str) -> str | re.Pattern[str]:
    """An expression is between slashes, before the letters of its flags."""
    if not text.startswith("/"):
        return text
    source, _, letters = text[1:].rpartition("/")
    return re.compile(source, sum(FLAGS[letter] for letter in letters))


def test_the_table_of_stops_and_bans() -> None:
    """``held`` is what may still be claimed after each chunk that completes nothing."""
    for case in CASES:
        found, held = None, []
        bans = BanMatcher([pattern(text) for text in case.get("bans", ())])
        stops = StopMatcher(case.get("stops", ()), case.get("tokens", ()))
        for chunk in case["chunks"]:
            token, text = (None, chunk) if isinstance(chunk, str) else chunk
            found = bans.advance(text) or stops.advance(token, text)
            if found is not None:
                break
            held.append(max(bans.held, stops.held))
        found = found or bans.finish()
        assert (found and [found.start, found.end]) == case["match"], case
        assert held == case.get("held", held), case


@pytest.mark.parametrize("pieces", [["de"], ["d", "e"], ["xd", "ey"], ["xdey"], ["é", "de"]])
def test_peers_6_the_tokens_do_not_matter_to_a_stop_string(pieces: list[str]) -> None:
    vocabulary = Vocabulary.of(alphabet_tokenizer(["de", "xd", "ey", "xdey"]))
    decoder, matcher = TextDecoder(vocabulary), StopMatcher(["de"])
    tokens = [
        token for piece in ["a", *pieces] for token in vocabulary.continue_with(piece.encode())
    ]
    *_, match = [matcher.advance(token, decoder.advance(token)) for token in tokens]
    assert match is not None and match.stop == "de"
    assert decoder.text[: match.start] == "".join(["a", *pieces]).partition("de")[0]


def test_after_a_match_every_step_is_refused_until_a_rewind() -> None:
    stops, bans = StopMatcher(["ab"]), BanMatcher(["ab"])
    steps: list[tuple[Any, Any]] = [
        (stops, lambda matcher, text: matcher.advance(None, text)),
        (bans, lambda matcher, text: matcher.advance(text)),
    ]
    for matcher, advance in steps:
        assert advance(matcher, "x") is None and advance(matcher, "ab") is not None
        for each in (matcher, matcher.fork()):
            each.rewind(5)  # which does nothing
            with pytest.raises(StateError):
                advance(each, "c")
        matcher.rewind(1)
        assert advance(matcher, "c") is None


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("stop", [[""], ["a", ""], [5], [b"a"], [None]]),
        ("stop_tokens", [[()], [[]], ["a"], [-1], [True], [[1, -2]], [1.5], [None]]),
        (
            "banned",
            [
                ["fine", re.compile(source)]
                for source in (
                    *(b"a", "a*", "(?=a)", r"\b", "a(?!.*b)"),
                    *("a(?!b$)", r"a(?!b\b)", r"a(?<!b\b)", "a(?!(?=b))"),
                )
            ],
        ),
    ],
)
def test_what_cannot_stop_or_be_banned_is_refused(field: str, wrong: list[Any]) -> None:
    make: dict[str, Any] = {
        "stop": StopMatcher,
        "stop_tokens": lambda given: StopMatcher(tokens=given),
        "banned": BanMatcher,
    }
    for given in wrong:
        with pytest.raises(OptionError) as caught:
            make[field](given)
        assert caught.value.field == field, given


def test_numbers_of_numpy_are_token_ids() -> None:
    matcher = StopMatcher(tokens=[(np.int32(1), np.int64(2)), np.uint8(7)])
    assert [matcher.advance(token, "") for token in (1, 1)] == [None, None]
    match = matcher.advance(2, "b")
    assert match is not None and match.stop == (1, 2)
