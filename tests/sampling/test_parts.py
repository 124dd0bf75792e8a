"""What a draw remembers of a sequence: counts, repetitions and adaptive-p's average.

Each is a part. The laws hold for all of them; what each one says is compared with its description,
written as plainly as can be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.sampling import Aim, Repetitions, SamplingSettings, TokenCounts

from ..effort import tries

PIECES = [b"a", b"b", b"\n", b"ab", b"a:", b"", "é".encode(), b"\xc3", b"\xa9", b"-", b"-\n"]
TOKENS = st.lists(st.integers(0, len(PIECES) - 1), max_size=40)
FEW = st.lists(st.integers(0, 2), max_size=60)
SETTINGS = st.builds(
    SamplingSettings,
    dry_multiplier=st.sampled_from([0.8, 5.0, 1e-300]),
    dry_base=st.sampled_from([1.0, 1.75, 3.0, 1.0001]),
    dry_allowed_length=st.integers(1, 7),
    dry_penalty_last_n=st.sampled_from([-1, 1, 5, 20]),
    dry_sequence_breakers=st.lists(
        st.sampled_from(["\n", ":", "ab", "b-", "ba-a", "é", "aa"]), max_size=3
    ).map(tuple),
)


def piece(token: int) -> bytes:
    return PIECES[token]


class Shares(Aim):
    """An average that is told a probability for each token."""

    def advance(self, token: int) -> None:
        self.drew(None if token == 5 else token / len(PIECES))
        super().advance(token)


def pays(repetitions: Repetitions) -> dict[int, float]:
    penalties = repetitions.penalties()
    if penalties is None:
        return {}
    ids, values = penalties
    assert len(set(ids.tolist())) == len(ids) > 0
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


def counted(counts: TokenCounts) -> dict[int, float]:
    ids, generated = counts.table()
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), generated.tolist(), strict=True))


Make = Callable[[list[int]], Any]
Says = Callable[[Any], Any]
Kind = tuple[Make, Says]
"""How a part is made of a prompt, and what it says."""


@st.composite
def parts(draw: st.DrawFn) -> Kind:
    chosen, window = draw(SETTINGS), draw(st.sampled_from([0, 0, 1, 5, 40]))
    kinds: list[Kind] = [
        (lambda prompt: TokenCounts(prompt, window=window), counted),
        (lambda prompt: Repetitions(prompt, chosen, piece), pays),
        (lambda prompt: fed(Shares(0.4, 0.8), prompt), lambda aim: aim.next),
    ]
    return draw(st.sampled_from(kinds))


def fed(part: Any, tokens: list[int]) -> Any:
    for token in tokens:
        part.advance(token)
    return part


# Laws


@settings(max_examples=tries(400))
@given(parts(), TOKENS | FEW, st.floats(0, 1), st.floats(0, 1.2), TOKENS)
def test_a_rewind_equals_never_having_advanced(
    kind: Kind,
    tokens: list[int],
    begun: float,
    kept: float,
    more: list[int],
) -> None:
    make, says = kind
    prompt, to = int(begun * len(tokens)), int(kept * len(tokens))
    part = fed(make(tokens[:prompt]), tokens[prompt:])
    part.rewind(to)
    fresh = fed(make(tokens[:to][:prompt]), tokens[:to][prompt:])
    assert len(part) == min(to, len(tokens))
    for token in [*more, None]:
        assert (len(part), says(part)) == (len(fresh), says(fresh))
        if token is not None:
            part.advance(token)
            fresh.advance(token)


@settings(max_examples=tries(200))
@given(parts(), TOKENS | FEW, FEW, st.floats(0, 1.2))
def test_a_fork_sees_nothing_of_the_other(
    kind: Kind, tokens: list[int], more: list[int], kept: float
) -> None:
    make, says = kind
    to = int(kept * len(tokens))
    part = make(tokens)
    before = says(part)
    twin = part.fork()
    twin.rewind(to)
    fed(twin, more)
    assert says(part) == before
    after = says(twin)
    part.rewind(to)
    assert says(twin) == after


def test_a_long_history_has_room() -> None:
    settings = SamplingSettings(dry_multiplier=1.0)
    repetitions = fed(Repetitions([0] * 31, settings, piece), [0, 1] * 500)
    assert pays(repetitions).keys() == pays(repetitions.fork()).keys() == {0}


# Counts


@given(TOKENS, TOKENS, st.integers(-2, 9))
def test_every_token_of_the_window_is_there_once_with_how_often_it_was_generated(
    prompt: list[int], generated: list[int], before: int
) -> None:
    """``before``: how many tokens the window leaves out; it may be larger than the history."""
    window = max(0, len(prompt) + len(generated) - before)
    counts = fed(TokenCounts(prompt, window=window), generated)
    before = max(0, before) if window else 0
    new = Counter(generated[max(0, before - len(prompt)) :])
    assert counted(counts) == {token: new[token] for token in (prompt + generated)[before:]}


# Repetitions


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
    tokens: list[int], prompt: int, settings: SamplingSettings
) -> None:
    penalties = pays(fed(Repetitions(tokens[:prompt], settings, piece), tokens[prompt:]))
    wanted = expected(tokens, settings)
    assert penalties.keys() == wanted.keys()
    for token, penalty in wanted.items():
        assert math.isclose(penalties[token], penalty, rel_tol=1e-6, abs_tol=1e-40)


# Adaptive-p's average


def test_it_aims_beyond_the_target_by_what_the_latest_tokens_miss() -> None:
    def fed(shares: list[float | None]) -> Aim:
        aim = Aim(0.4, 0.8)
        for share in shares:
            aim.drew(share)
            aim.advance(0)
        return aim

    assert fed([]).next == pytest.approx(0.4)
    assert fed([0.4] * 9).next == pytest.approx(0.4)
    assert fed([0.9]).next == pytest.approx(2 * 0.4 - (0.8 * 0.4 + 0.2 * 0.9))
    assert fed([None] * 5).next == pytest.approx(0.4)  # nobody drew these
    assert fed([1.0] * 99).next == 0.0
