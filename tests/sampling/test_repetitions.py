from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.sampling import Repetitions, SamplingSettings

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


def found(repetitions: Repetitions) -> dict[int, float]:
    penalties = repetitions.penalties()
    if penalties is None:
        return {}
    ids, values = penalties
    assert len(set(ids.tolist())) == len(ids) > 0
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


def fed(prompt: list[int], generated: list[int], settings: SamplingSettings) -> Repetitions:
    repetitions = Repetitions(prompt, settings, piece)
    for token in generated:
        repetitions.advance(token)
    return repetitions


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
    penalties = found(fed(tokens[:prompt], tokens[prompt:], settings))
    wanted = expected(tokens, settings)
    assert penalties.keys() == wanted.keys()
    for token, penalty in wanted.items():
        assert math.isclose(penalties[token], penalty, rel_tol=1e-6, abs_tol=1e-40)


@settings(max_examples=tries(200))
@given(TOKENS | FEW, st.integers(0, 40), st.integers(-2, 70), TOKENS, SETTINGS)
def test_a_rewind_equals_never_having_advanced(
    tokens: list[int], prompt: int, to: int, more: list[int], settings: SamplingSettings
) -> None:
    repetitions = fed(tokens[:prompt], tokens[prompt:], settings)
    repetitions.rewind(to)
    fresh = fed(tokens[: max(to, 0)], [], settings)
    for token in [*more, None]:
        assert (len(repetitions), found(repetitions)) == (len(fresh), found(fresh))
        if token is not None:
            repetitions.advance(token)
            fresh.advance(token)


@given(TOKENS | FEW, FEW, st.integers(0, 60), SETTINGS)
def test_a_fork_sees_nothing_of_the_other(
    tokens: list[int], more: list[int], to: int, settings: SamplingSettings
) -> None:
    repetitions = fed(tokens, [], settings)
    before = found(repetitions)
    twin = repetitions.fork()
    twin.rewind(to)
    for token in more:
        twin.advance(token)
    assert found(repetitions) == before
    after = found(twin)
    repetitions.rewind(to)
    assert found(twin) == after


@pytest.mark.parametrize(
    ("tokens", "options", "penalties"),
    [
        ([0, 1, 3, 0, 1], {}, {3: 1.0}),  # two tokens are repeated, as many as are allowed
        ([9, 0, 1, 3, 9, 0, 1], {}, {3: 1.75}),
        ([0, 1, 3, 0], {}, {}),
        ([0, 1, 3, 0], {"dry_allowed_length": 1}, {1: 1.0}),
        ([9, 0, 1, 3, 0, 0, 1, 9, 9, 0, 1], {}, {3: 1.75, 9: 1.0}),  # of two, the longer counts
        ([0, 0, 0, 0], {}, {0: 1.75}),  # a repetition may overlap itself
        ([0, 2, 1, 3, 0, 2, 1], {}, {}),  # a line end is no part of one
        ([0, 1, 2, 0, 1], {}, {}),  # nor made less likely
        ([9, 0, 1, 3, 9, 0, 1], {"dry_penalty_last_n": 6}, {3: 1.0}),
        ([9, 0, 1, 3, 9, 0, 1], {"dry_penalty_last_n": 4}, {}),
    ],
)
def test_examples(tokens: list[int], options: dict[str, Any], penalties: dict[int, float]) -> None:
    settings = SamplingSettings(dry_multiplier=1.0, **options)
    assert found(fed(tokens, [], settings)) == pytest.approx(penalties)


def test_a_penalty_never_leaves_nothing_to_draw() -> None:
    settings = SamplingSettings(dry_multiplier=100.0, dry_base=100.0)
    assert found(fed([0] * 1000, [], settings)) == {0: 1e9}


class Counting(list[int]):
    looked = 0

    def __getitem__(self, place: Any) -> Any:
        self.looked += 1
        return super().__getitem__(place)


@pytest.mark.parametrize("period", [1, 2, 7])
def test_a_text_that_repeats_itself_all_the_time_is_compared_once(period: int) -> None:
    """Its every end is like every other one: naively, that is a square of comparisons."""
    options: dict[str, Any] = {"dry_base": 1.0001, "dry_sequence_breakers": ()}
    repetitions = fed(
        [i % period for i in range(4000)], [], SamplingSettings(dry_multiplier=1.0, **options)
    )
    repetitions._tokens = tokens = Counting(repetitions._tokens)
    assert repetitions.penalties() is not None
    assert tokens.looked < 6 * len(tokens)


def test_settings_say_whether_repetitions_matter() -> None:
    assert SamplingSettings(dry_multiplier=0.1).avoids_repetitions
    assert not SamplingSettings(dry_base=3.0).avoids_repetitions
    assert not SamplingSettings(dry_multiplier=1.0, dry_penalty_last_n=0).avoids_repetitions


def test_a_long_history_has_room() -> None:
    settings = SamplingSettings(dry_multiplier=1.0)
    repetitions = fed([], [0, 1] * 500, settings)
    assert len(repetitions) == 1000 and found(repetitions).keys() == {0}
    assert found(repetitions.fork()) == found(repetitions)
