from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.text import StopMatch, StopMatcher
from mlxgen.tokens import Token

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


def rank(match: StopMatch) -> tuple[int, int, bool, int]:
    """Peers 5: the one that completes first, then starts first, then a string, then the longest."""
    return match.end, match.start, not isinstance(match.stop, str), -len(match.stop)


@given(STOPS, RUNS, st.lists(STEPS, max_size=10), st.randoms(use_true_random=False))
@settings(max_examples=tries(200))
def test_which_stop_wins_does_not_depend_on_their_order(
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
    matcher = StopMatcher(stops, runs)
    assert next((m for m in (matcher.advance(*step) for step in steps) if m), None) == expected
