"""The graph of a decode step: hardly more primitives than mlx-lm's, and no copies of KV."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import mlx.core as mx
import pytest
from benchmarks import kit, primitives
from benchmarks.primitives import ALONE, COPIED, DRAFTED, TOGETHER, long_cases

from tests.effort import ALL
from tests.fakes.paces import Still

MORE = 5
"""Primitives of a single step beyond mlx-lm's."""
DRAFTED_SHARE = 100  # of drafts, one kernel more for so many: their logits are looked at, too


@cache
def cases(name: str, make: Callable[[str], dict[str, kit.Case]]) -> dict[str, kit.Case]:
    """Those of a model whose steps do not depend on what they take here."""
    found = make(name)
    for case in found.values():
        case.lm.runtime.pace = Still()
    return found


def short(name: str) -> dict[str, kit.Case]:
    return primitives.cases(kit.tiny(name))


@pytest.mark.parametrize("name", kit.TINY)
@pytest.mark.parametrize("what", [*ALONE, *TOGETHER, DRAFTED])
def test_a_step_has_hardly_more_primitives_than_mlx_lms(name: str, what: str) -> None:
    if what not in cases(name, short):
        pytest.skip("mlx-lm has no drafts there")
    case = cases(name, short)[what]
    ours, theirs = (primitives.count(made, case) for made in (case.ours(), case.theirs()))
    more = MORE if what in ALONE else theirs.kernels // DRAFTED_SHARE if what == DRAFTED else 0
    assert ours.primitives <= theirs.primitives + more
    assert ours.kernels <= theirs.kernels + more


@pytest.mark.parametrize("turn, name", list(enumerate(kit.TINY)))
def test_no_step_copies_keys_and_values(turn: int, name: str) -> None:
    found = list(cases(name, long_cases).items())
    for what, case in found if ALL else found[turn :: len(kit.TINY)]:
        share = primitives.beyond(case.ours(), case)
        if share >= COPIED:  # mlx-lm's caches join new keys to a window
            assert share <= 1.5 * primitives.beyond(case.theirs(), case), what


def test_a_copy_of_keys_would_be_seen() -> None:
    case = kit.Case(kit.tiny("llama"), [[5] * 600, [6] * 600])

    def copying() -> Iterator[int]:
        keys = mx.zeros((2, 2, 600, 32))
        mx.eval(keys)
        for token in range(1000):
            mx.eval(mx.take(keys, mx.array([1, 0]), axis=0))
            yield token

    assert primitives.beyond(copying(), case) >= COPIED  # type: ignore[arg-type]
