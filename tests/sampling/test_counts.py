from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen.sampling import TokenCounts

TOKENS = st.lists(st.integers(0, 8), max_size=30)
WINDOWS = st.integers(0, 40)


def contents(counts: TokenCounts) -> tuple[int, list[int], list[float]]:
    ids, generated = counts.table()
    return len(counts), ids.tolist(), generated.tolist()


def fed(prompt: list[int], generated: list[int], window: int = 0) -> TokenCounts:
    counts = TokenCounts(prompt, window=window)
    for token in generated:
        counts.advance(token)
    return counts


@given(TOKENS, TOKENS)
def test_every_token_is_there_once_with_how_often_it_was_generated(
    prompt: list[int], generated: list[int]
) -> None:
    counts = fed(prompt, generated)
    length, ids, times = contents(counts)
    assert length == len(prompt) + len(generated)
    assert ids == list(dict.fromkeys(prompt + generated))
    assert dict(zip(ids, times, strict=True)) == {
        token: Counter(generated)[token] for token in prompt + generated
    }


@given(TOKENS, TOKENS, WINDOWS)
def test_a_window_shows_what_the_newest_tokens_alone_would(
    prompt: list[int], generated: list[int], window: int
) -> None:
    _, ids, times = contents(fed(prompt, generated, window))
    before = len(prompt) + len(generated) - window if window else 0
    recent = (prompt + generated)[max(0, before) :]
    new = Counter(generated[max(0, before - len(prompt)) :])
    assert dict(zip(ids, times, strict=True)) == {token: new[token] for token in recent}
    assert len(set(ids)) == len(ids)


@given(TOKENS, TOKENS, st.integers(-2, 70), TOKENS, WINDOWS)
def test_a_rewind_equals_never_having_advanced(
    prompt: list[int], generated: list[int], to: int, more: list[int], window: int
) -> None:
    counts = fed(prompt, generated, window)
    counts.rewind(to)
    kept = max(to, 0)
    fresh = fed(prompt[:kept], generated[: max(kept - len(prompt), 0)], window)
    assert contents(counts) == contents(fresh)
    for token in more:
        counts.advance(token)
        fresh.advance(token)
    assert contents(counts) == contents(fresh)


@given(TOKENS, TOKENS, TOKENS, st.integers(0, 60), WINDOWS)
def test_a_fork_sees_nothing_of_the_other(
    prompt: list[int], generated: list[int], more: list[int], to: int, window: int
) -> None:
    counts = fed(prompt, generated, window)
    before = contents(counts)
    twin = counts.fork()
    twin.rewind(to)
    for token in more:
        twin.advance(token)
    assert contents(counts) == before
    after = contents(twin)
    counts.rewind(to)
    assert contents(twin) == after


@pytest.mark.parametrize("prompt", [0, 31, 200])
def test_counts_grow_with_a_long_history(prompt: int) -> None:
    counts = TokenCounts(range(prompt))
    for token in range(1000):
        counts.advance(token)
    assert contents(counts) == (prompt + 1000, list(range(1000)), [1.0] * 1000)
    counts.rewind(prompt + 500)
    assert contents(counts) == (prompt + 500, list(range(500)), [1.0] * 500)
