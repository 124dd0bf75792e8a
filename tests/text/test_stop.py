from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import OptionError, StateError
from mlxgen.text import StopMatch, StopMatcher, TextDecoder
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import alphabet_tokenizer, byte_level_tokenizer

from ..effort import tries
from .laws import Operations, check_laws, chunkings, operations

STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=5)
RUNS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), max_size=3)
STEPS = st.tuples(st.none() | st.integers(1, 4), st.text("ab\nc", max_size=3))


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


def deliver(matcher: StopMatcher, chunks: Sequence[str]) -> tuple[str, StopMatch | None]:
    """The text delivered by a caller that never sends what a stop may still claim."""
    text, sent = "", ""
    for chunk in chunks:
        text += chunk
        match = matcher.advance(None, chunk)
        if match is not None:
            assert match.start >= len(sent)
            return sent + text[len(sent) : match.start], match
        sent += text[len(sent) : len(text) - matcher.held]
    return sent + text[len(sent) :], None


@given(STOPS, st.text("ab\nc", max_size=16), st.data())
@settings(max_examples=tries(300))
def test_what_is_delivered_does_not_depend_on_how_the_text_comes(
    stops: list[str], text: str, data: st.DataObject
) -> None:
    match = plain_match(stops, text)
    delivered = text if match is None else text[: match.start]
    for chunks in (data.draw(chunkings(text)), list(text), [text]):
        assert deliver(StopMatcher(stops), chunks) == (delivered, match)


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


@given(STOPS, RUNS, st.lists(STEPS, max_size=10), st.randoms(use_true_random=False))
@settings(max_examples=tries(200))
def test_the_stop_that_completes_first_wins_then_the_one_that_starts_first_then_a_string(
    stops: list[str],
    runs: list[list[Token]],
    steps: list[tuple[Token | None, str]],
    random: np.random.Generator,
) -> None:
    """Peers 5: in whatever order they are given."""
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
            expected = min(first, key=lambda match: (match.end, match.start))
            break
    random.shuffle(stops)
    random.shuffle(runs)
    matcher = StopMatcher(stops, runs)
    assert next((m for m in (matcher.advance(*step) for step in steps) if m), None) == expected


# ---- what the peers get wrong -----------------------------------------------------------


def test_peers_3_text_that_was_held_is_still_there_when_the_generation_ends() -> None:
    """mlx-lm drops a final ``<`` if ``<think>`` could have started."""
    assert deliver(StopMatcher(["<think>"]), ["1 ", "<"]) == ("1 <", None)


def test_peers_4_a_stop_that_completes_on_the_last_token_is_a_stop() -> None:
    assert deliver(StopMatcher(["END"]), ["so EN", "D"]) == (
        "so ",
        StopMatch("END", 3, 6),
    )


@pytest.mark.parametrize("stops", list(itertools.permutations(["abcdef", "bc"])))
def test_peers_5_the_stop_that_completes_first_wins(stops: Sequence[str]) -> None:
    assert deliver(StopMatcher(stops), ["abc"]) == ("a", StopMatch("bc", 1, 3))
    assert deliver(StopMatcher(stops), ["abcdef"]) == ("a", StopMatch("bc", 1, 3))


@pytest.mark.parametrize("pieces", [["de"], ["d", "e"], ["xd", "ey"], ["xdey"]])
def test_peers_6_the_tokens_do_not_matter_to_a_stop_string(pieces: list[str]) -> None:
    vocabulary = Vocabulary.of(alphabet_tokenizer(["de", "xd", "ey", "xdey"]))
    decoder, matcher = TextDecoder(vocabulary), StopMatcher(["de"])
    matches = []
    for piece in ["a", *pieces]:
        token = vocabulary.token_of(piece.encode())
        assert token is not None
        matches.append(matcher.advance(token, decoder.advance(token)))
    assert matches[-1] is not None
    assert decoder.text[: matches[-1].start] in ("a", "ax")
    assert matches[-1].stop == "de"


def test_a_stop_of_characters_split_over_tokens_is_found() -> None:
    vocabulary = Vocabulary.of(byte_level_tokenizer())
    decoder, matcher = TextDecoder(vocabulary), StopMatcher(["中A"])
    found = []
    for piece in (b"a", b"\xe4\xb8", b"\xadA"):
        token = vocabulary.token_of(piece)
        assert token is not None
        found.append(matcher.advance(token, decoder.advance(token)))
    assert found == [None, None, StopMatch("中A", 1, 3)]


def test_case_and_unicode_form_count() -> None:
    composed, decomposed = "é", "e\u0301"
    assert deliver(StopMatcher(["stop", composed]), ["STOP " + decomposed])[1] is None


# ---- stops of tokens ----------------------------------------------------------------------


def test_a_run_of_stop_tokens_holds_the_text_of_those_that_matched() -> None:
    matcher = StopMatcher(tokens=[(np.int32(1), np.int64(2), 3), 77])
    steps = [(9, "xx"), (1, "aa"), (2, "b")]
    assert [matcher.advance(*step) for step in steps] == [None] * 3
    assert matcher.held == 3
    twin = matcher.fork()
    assert matcher.advance(3, "c") == StopMatch((1, 2, 3), 2, 6)
    assert twin.advance(1, "dd") is None
    assert twin.held == 2


# ---- misuse -------------------------------------------------------------------------------


def test_after_a_match_every_step_is_refused_until_a_rewind() -> None:
    matcher = StopMatcher(["ab"])
    assert matcher.advance(None, "ab") is not None
    with pytest.raises(StateError):
        matcher.advance(None, "c")
    twin = matcher.fork()
    with pytest.raises(StateError):
        twin.advance(None, "c")
    matcher.rewind(5)
    with pytest.raises(StateError):
        matcher.advance(None, "c")
    matcher.rewind(0)
    assert matcher.advance(None, "c") is None


@pytest.mark.parametrize("strings", [[""], ["a", ""], [5], [b"a"], [None]])
def test_what_is_not_a_stop_string_is_refused(strings: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        StopMatcher(strings)
    assert caught.value.field == "stop"


@pytest.mark.parametrize("tokens", [[()], [[]], ["a"], [-1], [True], [[1, -2]], [1.5], [None]])
def test_what_is_not_a_stop_token_is_refused(tokens: list[Token]) -> None:
    with pytest.raises(OptionError) as caught:
        StopMatcher(tokens=tokens)
    assert caught.value.field == "stop_tokens"
