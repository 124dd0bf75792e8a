"""What a matcher finds is the longest match that there is, whatever was taken back before."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.engine.history import History
from mlxgen.engine.speculation.matcher import FARTHEST, MOST, Match, Matcher
from mlxgen.engine.speculation.places import FEW, FIRST, RUN
from mlxgen.engine.speculation.texts import Texts
from mlxgen.tokens import Token

from ...effort import tries

PATCH = -(10**30)  # of an image
Text = Sequence[Token]

tokens = st.sampled_from([0, 1, 2, 3, 3, 3, PATCH])
steps = st.one_of(
    st.lists(tokens, min_size=1, max_size=4),  # the text goes on
    st.lists(tokens, min_size=FEW + 1, max_size=FEW + 9),
    st.integers(0, 150),  # it is cut
    st.just("fork"),
)


def longest(end: Text, texts: Sequence[Text]) -> tuple[int, dict[Token, float]] | None:
    """The plain version: how many tokens match at most, and the shares of what came next."""
    came: dict[int, Counter[Token]] = {}
    for text in texts:
        for place in range(3, len(text)):
            if text[place] >= 0:
                length = common(text[:place], end)
                came.setdefault(length, Counter())[text[place]] += 1
    length = max(came, default=0)
    if length < 3:
        return None
    return length, {token: n / came[length].total() for token, n in came[length].items()}


def common(text: Text, end: Text) -> int:
    pairs = zip(reversed(text), reversed(end), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b or a < 0), min(len(text), len(end)))


def found(match: Match | None) -> tuple[int, dict[Token, float]] | None:
    return None if match is None else (match.length, dict(match.next()))


@settings(max_examples=tries(400))
@given(st.lists(st.lists(tokens, max_size=40), max_size=3), st.lists(steps, max_size=12))
def test_a_match_is_the_longest(
    earlier: list[list[Token]], steps: list[list[Token] | int | str]
) -> None:
    texts = Texts()
    for text in earlier:
        texts.add(text)
    history = History()
    matcher = Matcher(texts)
    for step in steps:
        if isinstance(step, int):
            history.cut(step)
        elif isinstance(step, str):
            other, matcher = matcher, matcher.fork()
            forked, history = history, history.fork()
            forked.extend([0, 1, 2, 3] * 3)
            other.at(forked)  # of no consequence for its copy
        else:
            history.extend(step)
        match = matcher.at(history)
        if any(history.count(token) > MOST for token in range(4)):
            return  # not every place is looked at
        if match is None or RUN <= match.length < FARTHEST:
            assert longest(history, [history, *earlier]) == found(match)


@settings(max_examples=tries(400))
@given(
    st.lists(tokens, max_size=60),
    st.lists(tokens, max_size=60),
    st.lists(st.integers(0, 3), max_size=12),
)
def test_a_walk_finds_what_the_text_would_find(
    earlier: list[Token], text: list[Token], walked: list[Token]
) -> None:
    texts = Texts()
    texts.add(earlier)
    matcher, history = Matcher(texts), History(text)
    match = matcher.at(history)
    for i, token in enumerate(walked, 1):
        if match is None:
            break
        match = match.then(token)
        end = text + walked[:i]
        known = [longest(end, [own, earlier]) for own in (end, text)]
        assert found(match) in known  # nothing is searched for in what was only walked
    assert matcher.at(history) is matcher.at(history)


def test_a_text_that_repeats_itself_is_continued() -> None:
    match = Matcher(Texts()).at(History([1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3]))
    came = []
    for _ in range(12):
        assert match is not None
        ((token, _share),) = match.next()
        came.append(token)
        match = match.then(token)
    assert came == [4, 5, 1, 2, 3] * 2 + [4, 5]


def test_after_an_edit_the_text_is_found_again_from_one_token() -> None:
    text = list(range(100, 150))
    history, matcher = History(text), Matcher(Texts())
    came = {}
    for token in [*text[:20], 7, *text[21:30], 8, 9, *text[30:40], *text[42:]]:
        history.append(token)
        match = matcher.at(history)
        came[token] = match and (match.length, match.next())
    assert came[7] is None
    assert came[121] == (1, [(122, 1.0)]) and came[122] == (2, [(123, 1.0)])  # replaced
    assert came[9] is None and came[130] == (1, [(131, 1.0)])  # inserted
    assert came[142] == (1, [(143, 1.0)])  # left out


def test_the_most_frequent_comes_first_and_then_the_latest() -> None:
    match = Matcher(Texts()).at(
        History([7, 8, 9, 1, 7, 8, 9, 2, 7, 8, 9, 1, 7, 8, 9, 3, 0, 7, 8, 9])
    )
    assert match is not None
    assert match.next() == [(1, 0.5), (3, 0.25), (2, 0.25)]


def test_only_the_latest_places_are_looked_at() -> None:
    history = History([7, 8, 9, 1])
    for _ in range(MOST):
        history.extend([7, 8, 9, 2])
    history.extend([0, 7, 8, 9])
    match = Matcher(Texts()).at(history)
    assert match is not None and match.next() == [(2, 1.0)]


def test_growing_token_by_token_finds_what_the_whole_text_finds() -> None:
    rng = random.Random(0)
    history, matcher = History(), Matcher(Texts())
    for _ in range(5 * FIRST):
        history.append(rng.randrange(20))
        grown = matcher.at(history)
        if len(history) % 50 == 0:
            assert found(Matcher(Texts()).at(history)) == found(grown)


def test_a_text_can_be_found_while_another_is_added() -> None:
    texts = Texts()
    matcher, history = Matcher(texts), History([5, 6, 7])
    assert matcher.at(history) is None
    texts.add([1, 5, 6, 7, 8, 9, 2])
    match = matcher.at(history)
    assert match is not None and match.next() == [(8, 1.0)]
