"""What draws look back at: counts, repetitions and adaptive-p's average.

The laws of a part hold for all of it; what each says is compared with its description, written as
plainly as can be.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlxgen.sampling import Change, Lookback, SamplingSettings

from ..effort import tries

PIECES = [b"a", b"b", b"\n", b"ab", b"a:", b"", "é".encode(), b"\xc3", b"\xa9", b"-", b"-\n"]
TOKENS = st.lists(st.integers(0, len(PIECES) - 1), max_size=40)
FEW = st.lists(st.integers(0, 2), max_size=60)
SETTINGS = st.builds(
    SamplingSettings,
    temperature=st.just(1.0),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.25]),
    repetition_context_size=st.sampled_from([0, 0, 1, 5, 40]),
    adaptive_target=st.sampled_from([-1.0, 0.4]),
    dry_multiplier=st.sampled_from([0.0, 0.8, 5.0, 1e-300]),
    dry_base=st.sampled_from([1.0, 1.75, 3.0, 1.0001]),
    dry_allowed_length=st.integers(1, 7),
    dry_penalty_last_n=st.sampled_from([-1, 1, 5, 20]),
    dry_sequence_breakers=st.lists(
        st.sampled_from(["\n", ":", "ab", "b-", "ba-a", "é", "aa"]), max_size=3
    ).map(tuple),
)


def piece(token: int) -> bytes:
    return PIECES[token]


def looking_back(prompt: list[int], generated: list[int], chosen: SamplingSettings) -> Lookback:
    return fed(Lookback(prompt, chosen, piece), generated)


def fed(lookback: Lookback, tokens: list[int]) -> Lookback:
    for token in tokens:
        lookback.drew(None if token == 5 else token / len(PIECES))
        lookback.advance(token)
    return lookback


def by_token(change: Change | None) -> dict[int, tuple[float, float]]:
    """The factor of each token, and what is subtracted."""
    if change is None:
        return {}
    ids, *numbers = (column.tolist() for column in change)
    assert len(set(ids)) == len(ids) > 0
    return dict(zip(ids, zip(*numbers, strict=True), strict=True))


def said(lookback: Lookback) -> Any:
    return len(lookback), lookback.target, [by_token(each) for each in lookback.changes()]


# ---- laws ---------------------------------------------------------------------------------------


@settings(max_examples=tries(400))
@given(SETTINGS, TOKENS | FEW, st.floats(0, 1), st.floats(0, 1.2), TOKENS)
def test_a_rewind_equals_never_having_advanced(
    chosen: SamplingSettings, tokens: list[int], begun: float, kept: float, more: list[int]
) -> None:
    prompt, to = int(begun * len(tokens)), int(kept * len(tokens))
    lookback = looking_back(tokens[:prompt], tokens[prompt:], chosen)
    lookback.rewind(to)
    fresh = looking_back(tokens[:to][:prompt], tokens[:to][prompt:], chosen)
    for token in more:
        assert said(lookback) == said(fresh)
        fed(lookback, [token])
        fed(fresh, [token])
    assert said(lookback) == said(fresh)


@settings(max_examples=tries(200))
@given(SETTINGS, TOKENS | FEW, FEW, st.floats(0, 1.2))
@example(SamplingSettings(dry_multiplier=1.0), [0] * 31 + [0, 1] * 500, [0], 1.0)
def test_a_fork_sees_nothing_of_the_other(
    chosen: SamplingSettings, tokens: list[int], more: list[int], kept: float
) -> None:
    lookback, to = looking_back([], tokens, chosen), int(kept * len(tokens))
    before = said(lookback)
    twin = lookback.fork()
    twin.rewind(to)
    fed(twin, more)
    assert said(lookback) == before
    after = said(twin)
    lookback.rewind(to)
    assert said(twin) == after


# ---- what each says ------------------------------------------------------------------------------


@settings(max_examples=tries(200))
@given(TOKENS, TOKENS, st.integers(-2, 9))
def test_every_token_of_the_window_is_penalised_once_for_how_often_it_was_generated(
    prompt: list[int], generated: list[int], before: int
) -> None:
    """``before``: how many tokens the window leaves out; it may be larger than the history."""
    window = max(0, len(prompt) + len(generated) - before)
    chosen = SamplingSettings(
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        repetition_context_size=window,
    )
    before = max(0, before) if window else 0
    new = Counter(generated[max(0, before - len(prompt)) :])
    wanted = {
        token: (1.5, 0.5 * (new[token] > 0) + 0.25 * new[token])
        for token in (prompt + generated)[before:]
    }
    assert by_token(looking_back(prompt, generated, chosen).penalties()) == wanted


def since_breaker(tokens: list[int], breakers: list[bytes]) -> int:
    """How many tokens come after the last one in which a breaker ends."""
    for place in range(len(tokens) - 1, -1, -1):
        before = b"".join(map(piece, tokens[:place]))
        whole = before + piece(tokens[place])
        ends = range(len(before) + 1, len(whole) + 1)
        if any(whole[:end].endswith(text) for end in ends for text in breakers):
            return len(tokens) - 1 - place
    return len(tokens)


def expected(tokens: list[int], settings: SamplingSettings) -> dict[int, float]:
    """The published description, as plainly as it can be written."""
    breakers = [text.encode() for text in settings.dry_sequence_breakers]
    recent = tokens if settings.dry_penalty_last_n < 0 else tokens[-settings.dry_penalty_last_n :]
    most = since_breaker(tokens, breakers)
    penalties: dict[int, float] = {}
    for end in range(1, len(recent)):
        length, token = 0, recent[end]
        while length < min(end, most) and recent[end - 1 - length] == recent[-1 - length]:
            length += 1
        if length < settings.dry_allowed_length or any(text in piece(token) for text in breakers):
            continue
        excess = length - settings.dry_allowed_length
        penalty = settings.dry_multiplier * settings.dry_base**excess
        penalties[token] = max(penalties.get(token, 0.0), min(penalty, 1e9))
    return penalties


@settings(max_examples=tries(400))
@given(TOKENS | FEW, st.integers(0, 60), SETTINGS)
def test_what_continues_a_repetition_pays_what_its_author_says(
    tokens: list[int], prompt: int, chosen: SamplingSettings
) -> None:
    found = by_token(looking_back(tokens[:prompt], tokens[prompt:], chosen).repetitions())
    wanted = expected(tokens, chosen) if chosen.dry_multiplier else {}
    assert found.keys() == wanted.keys()
    for token, penalty in wanted.items():
        assert found[token][0] == 1
        assert math.isclose(found[token][1], penalty, rel_tol=1e-6, abs_tol=1e-40)


@pytest.mark.parametrize(
    ("shares", "target"),
    [
        ([], 0.4),
        ([0.4] * 9, 0.4),
        ([0.9], 2 * 0.4 - (0.8 * 0.4 + 0.2 * 0.9)),
        ([None] * 5, 0.4),  # nobody drew these
        ([1.0] * 99, 0.0),
    ],
)
def test_a_draw_aims_beyond_the_target_by_what_the_latest_tokens_miss(
    shares: list[float | None], target: float
) -> None:
    chosen = SamplingSettings(temperature=1, adaptive_target=0.4, adaptive_decay=0.8)
    lookback = Lookback([1, 2], chosen, piece)
    for share in shares:
        lookback.drew(share)
        lookback.advance(0)
    lookback.drew(0.9)
    lookback.rewind(99)  # the draw is taken back
    lookback.advance(0)
    assert lookback.target == pytest.approx(target)
