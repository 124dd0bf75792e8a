from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import OptionError
from mlxgen.text import BanMatch, BanMatcher

from ..effort import tries
from .laws import Operations, check_laws, chunkings, operations

Pattern = str | re.Pattern[str]

# Expressions whose matches depend on nothing that follows them, and some that do.
LOCAL = ["ab", "a+b", "a|bb", "[ab]c", "a.c", "(?i)AB", "(?:ab)+c", "(?<=a)b", "^b", "(?<!a)bc"]
LOCAL += [r"(a|b)\1c", "a{2,3}b", "(?>a+)c", "a++b|aac", "(?m)^c", r"\bab", "ab?c", "a+?b"]
AHEAD = [r"\bab\b", "ab$", r"b\Z", "(?m)b$", "a(?=b)", "a(?!b)", "ab(?!ca)", r"a+\b", r"b\B"]
AHEAD += [r"a \bb", r"b\Ba", r"(?<=a\b) b", r"c\b.\b", r"[\b]?a\b", "a$\n", "(?m)a$\nb", "a(?=b$)"]
AHEAD += ["(?:a(?=bc)|b)c?", r"[ab]+\b", "a(?=b(?!c))"]
LITERALS = st.text("abc", min_size=1, max_size=3)
PATTERNS = st.lists(st.one_of(LITERALS, st.sampled_from(LOCAL + AHEAD).map(re.compile)), max_size=3)
TEXTS = st.text("aaabbc \n", max_size=14)


def run(
    patterns: Sequence[Pattern],
    chunks: Sequence[str],
    stands: Callable[[BanMatch], bool] = lambda match: False,
) -> BanMatch | None:
    """The ban of a text, which may only claim what was held until then."""
    matcher = BanMatcher(patterns, stands)
    length = released = 0
    for chunk in chunks:
        length += len(chunk)
        match = matcher.advance(chunk)
        if match is not None:
            assert match.start >= released
            return match
        released = max(released, length - matcher.held)
    match = matcher.finish()
    assert match is None or match.start >= released
    return match


def plain_local(pattern: re.Pattern[str], text: str) -> BanMatch | None:
    """The definition: the first character at which there is a match, the first such match."""
    for end in range(len(text) + 1):
        match = pattern.search(text, 0, end)
        if match is not None:
            return BanMatch(pattern.pattern, *match.span())
    return None


@pytest.mark.parametrize("expression", LOCAL)
@given(TEXTS, st.data())
@settings(max_examples=tries(30))
def test_a_local_expression_is_banned_where_it_first_completes(
    expression: str, text: str, data: st.DataObject
) -> None:
    pattern = re.compile(expression)
    expected = plain_local(pattern, text)
    for chunks in (data.draw(chunkings(text)), list(text), [text]):
        assert run([pattern], chunks) == expected


@pytest.mark.parametrize("expression", AHEAD)
@given(TEXTS, st.data())
@settings(max_examples=tries(30))
def test_an_expression_that_looks_ahead_is_banned_for_what_really_follows(
    expression: str, text: str, data: st.DataObject
) -> None:
    pattern = re.compile(expression)
    expected = [match.span() for match in pattern.finditer(text)]
    found = run([pattern], list(text))
    assert (found is not None) == bool(expected)
    if found is not None:
        assert pattern.match(text, found.start) is not None
    for chunks in (data.draw(chunkings(text)), [text]):
        assert run([pattern], chunks) == found


@given(PATTERNS, TEXTS, st.integers(0, 3), st.data())
@settings(max_examples=tries(350))
def test_which_ban_wins_does_not_depend_on_how_the_text_comes_nor_on_their_order(
    patterns: list[Pattern], text: str, salt: int, data: st.DataObject
) -> None:
    """With a ``salt``, some matches count for nothing."""

    def stands(match: BanMatch) -> bool:
        return salt > 0 and (match.start + salt) % 3 > 0

    found = run(patterns, list(text), stands)
    assert found is None or not stands(found)
    assert run(patterns, data.draw(chunkings(text)), stands) == found
    other = run(patterns[::-1], [text], stands)
    assert (other is None) == (found is None)
    if other is not None and found is not None:
        assert (other.start, other.end) == (found.start, found.end)


@given(PATTERNS, operations(st.text("aaabc ", max_size=3)))
@settings(max_examples=tries(100))
def test_a_matcher_that_was_rewound_is_a_fresh_one(
    patterns: list[Pattern], operations: Operations
) -> None:
    check_laws(
        lambda: BanMatcher(patterns),
        lambda matcher, text: matcher.advance(text),
        lambda matcher: (len(matcher), matcher.held, matcher.finish()),
        operations,
        is_final=lambda match: match is not None,
    )


@pytest.mark.parametrize("source", ["(a|aa)+b", r"\b(a|aa)+b", "(?>x)?(a|aa)+b"])
def test_a_search_without_end_is_an_error_that_names_the_expression_and_changes_nothing(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxgen.text.expression.SECONDS", 0.05)
    matcher = BanMatcher(["zz", re.compile(source)])
    assert matcher.advance(". aaa") is None
    before = len(matcher), matcher.held
    for _ in range(2):
        with pytest.raises(OptionError, match=r"banned: .*takes more than 0.05 s for"):
            matcher.advance("a" * 60)
        assert (len(matcher), matcher.held) == before
    assert matcher.advance("b ") == BanMatch(source, 2, 6)
    matcher.rewind(0)
    assert matcher.advance("zz") == BanMatch("zz", 0, 2)


def test_what_is_nested_too_deeply_for_the_parser_is_refused() -> None:
    for depth in range(100, 400, 20):
        try:
            pattern = re.compile("(?:" * depth + "a|b" + ")" * depth)
        except RecursionError:
            break  # nobody can have it
        try:
            BanMatcher([pattern])
        except OptionError as error:
            assert "nested too deeply" in str(error)


@pytest.mark.parametrize("expression", AHEAD)
@given(PATTERNS, TEXTS, st.integers(0, 14), st.data())
@settings(max_examples=tries(60))
def test_where_a_text_is_cut_the_ban_is_that_of_the_text_up_to_there(
    expression: str, patterns: list[Pattern], text: str, cut: int, data: st.DataObject
) -> None:
    patterns = [re.compile(expression), *patterns[:1]]
    cut, matcher = min(cut, len(text)), BanMatcher(patterns)
    for chunk in data.draw(chunkings(text)):
        if matcher.advance(chunk) is not None:
            return
    alone = BanMatcher(patterns)
    match = alone.advance(text[:cut]) or alone.finish()
    assert matcher.finish(cut) == match
