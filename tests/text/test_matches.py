"""Stops and bans: a table of texts, what both have in common, and stops by their definition."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import OptionError, StateError
from mlxgen.text import BanMatcher, StopMatch, StopMatcher, first_mark, sequence_overlap
from mlxgen.tokens import Token

from ..effort import table, tries
from .laws import Operations, check_laws, operations

FLAGS = {"i": re.I, "s": re.S, "m": re.M, "x": re.X, "a": re.A}


def pattern(text: str) -> str | re.Pattern[str]:
    """An expression is between slashes, before the letters of its flags."""
    if not text.startswith("/"):
        return text
    source, _, letters = text[1:].rpartition("/")
    return re.compile(source, sum(FLAGS[letter] for letter in letters))


def test_the_table_of_stops_and_bans() -> None:
    """``held`` is what may still be claimed after each chunk that completes nothing."""
    for case in table("matches"):
        if "refused" in case:
            continue
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
        assert "stop" not in case or getattr(found, "stop", None) == case["stop"], case


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


def test_what_cannot_stop_or_be_banned_is_refused() -> None:
    make: dict[str, Any] = {
        "stop": StopMatcher,
        "stop_tokens": lambda given: StopMatcher(tokens=given),
        "banned": BanMatcher,
    }
    for case in table("matches"):
        for wrong in eval(case.get("refused", "()"), {"re": re}):
            with pytest.raises(OptionError) as caught:
                make[case["field"]](wrong)
            assert caught.value.field == case["field"], wrong


def test_numbers_of_numpy_are_token_ids() -> None:
    matcher = StopMatcher(tokens=[(np.int32(1), np.int64(2)), np.uint8(7)])
    assert [matcher.advance(token, "") for token in (1, 1)] == [None, None]
    match = matcher.advance(2, "b")
    assert match is not None and match.stop == (1, 2)


# ---- stops, against their definition -----------------------------------------------------------


STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=5)
RUNS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), max_size=3)
STEPS = st.tuples(st.none() | st.integers(1, 4), st.text("ab\nc", max_size=8))


def plain_match(stops: Sequence[str], text: str) -> StopMatch | None:
    """The definition, character by character."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return StopMatch(stop, end - len(stop), end)
    return None


def plain_held(stops: Sequence[str], text: str) -> int:
    starts = {stop[:n] for stop in stops for n in range(len(stop))}
    return max((len(start) for start in starts if text.endswith(start)), default=0)


@given(STOPS, st.text("ab\nc", max_size=16))
@settings(max_examples=tries(200))
def test_no_more_is_held_than_a_stop_may_still_claim(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    for end, char in enumerate(text, 1):
        if matcher.advance(None, char) is not None:
            break
        assert matcher.held == plain_held(stops, text[:end])


@given(STOPS, RUNS, operations(STEPS))
@settings(max_examples=tries(150))
def test_a_matcher_that_was_rewound_is_a_fresh_one(
    stops: list[str], runs: list[list[Token]], operations: Operations
) -> None:
    check_laws(
        lambda: StopMatcher(stops, runs),
        lambda matcher, step: matcher.advance(*step),
        lambda matcher: (len(matcher), matcher.held),
        operations,
        is_final=lambda match: match is not None,
    )


def rank(match: StopMatch) -> tuple[int, int, bool, int]:
    """Peers 5: the one that completes first, then starts first, then a string, then the longest."""
    return match.end, match.start, not isinstance(match.stop, str), -len(match.stop)


@given(STOPS, RUNS, st.lists(STEPS, max_size=10), st.randoms(use_true_random=False))
@settings(max_examples=tries(500))
def test_which_stop_wins_depends_neither_on_their_order_nor_on_how_the_text_comes(
    stops: list[str],
    runs: list[list[Token]],
    steps: list[tuple[Token | None, str]],
    random: np.random.Generator,
) -> None:
    expected, text, ends = None, "", [0]
    for count, (_, piece) in enumerate(steps, 1):
        text += piece
        ends.append(len(text))
        tokens = [token for token, _ in steps[:count]]
        found = [plain_match(stops, text)]
        for run in runs:
            if tokens[-len(run) :] == run:
                found.append(StopMatch(tuple(run), ends[count - len(run)], len(text)))
        first = [match for match in found if match is not None]
        if first:
            expected = min(first, key=rank)
            break
    random.shuffle(stops)
    random.shuffle(runs)
    matcher, sent, end = StopMatcher(stops, runs), 0, 0
    for token, piece in steps:
        match = matcher.advance(token, piece)
        if match is not None:
            assert match == expected and match.start >= sent  # nothing of it was delivered
            return
        end += len(piece)
        sent = max(sent, end - matcher.held)
    assert expected is None


# ---- how far the end of one sequence is the start of another -------------------------------------


SHORT = st.text("ab", max_size=12)


@given(SHORT, SHORT)
@settings(max_examples=tries(200))
def test_overlap_equals_trying_every_length(s1: str, s2: str) -> None:
    plain = max(n for n in range(min(len(s1), len(s2)) + 1) if s1.endswith(s2[:n]))
    assert sequence_overlap(s1, s2) == plain
    assert sequence_overlap(list(s1), tuple(s2)) == plain


@given(SHORT, st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
@settings(max_examples=tries(200))
def test_the_first_mark_is_the_longest_at_its_place_or_may_begin_there(
    text: str, marks: list[str]
) -> None:
    for start in range(len(text)):
        found = [mark for mark in marks if text.startswith(mark, start)]
        if found:
            assert first_mark(text, [*marks, ""]) == (start, max(found, key=len))
            return
    begun = [at for at in range(len(text)) if any(m.startswith(text[at:]) for m in marks)]
    assert first_mark(text, [*marks, ""]) == (min(begun, default=len(text)), "")


def test_a_long_repetitive_overlap_takes_linear_work() -> None:
    class Counted:
        compared = 0

        def __init__(self, value: str) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return isinstance(other, Counted) and self.value == other.value

        __hash__ = None  # type: ignore[assignment]

    size = 500
    s1 = [Counted("a") for _ in range(size)]
    s2 = [*(Counted("a") for _ in range(size - 1)), Counted("b")]
    assert sequence_overlap(s1, s2) == size - 1
    assert Counted.compared < 10 * size
