"""The graph of a decode step: hardly more primitives than mlx-lm's, and no copies of KV."""

from __future__ import annotations

from functools import cache

import mlx.core as mx
import pytest
from benchmarks import kit, primitives
from benchmarks.primitives import ALONE, DRAFTED, RAGGED, TOGETHER

from tests.fakes.paces import Still

MORE = 4  # primitives of a single step beyond mlx-lm's
LONG = 600  # tokens of prompts whose KV would be seen if it was copied


@cache
def cases(name: str, length: int = primitives.LENGTH) -> dict[str, kit.Case]:
    """Those of a tiny model whose steps do not depend on what they take here."""
    lm = kit.tiny(name)
    lm.runtime.pace = Still()
    return primitives.cases(lm, length)


@pytest.mark.parametrize("name", kit.TINY)
@pytest.mark.parametrize("what", [*ALONE, *TOGETHER, DRAFTED])
def test_a_step_has_hardly_more_primitives_than_mlx_lms(name: str, what: str) -> None:
    if what not in cases(name):
        pytest.skip("mlx-lm has no drafts there")
    case = cases(name)[what]
    ours, theirs = (primitives.count(made, case) for made in (case.ours(), case.theirs()))
    more = MORE if what in ALONE else 0
    assert ours.primitives <= theirs.primitives + more
    assert ours.kernels <= theirs.kernels + more
