"""The graph of a decode step: hardly more primitives than mlx-lm's, and no copies of KV."""

from __future__ import annotations

from functools import cache

import mlx.core as mx
import pytest
from benchmarks import primitives
from benchmarks.kit import TINY, tiny
from benchmarks.primitives import ALONE, DRAFTED, RAGGED, TOGETHER

import mlxgen
from tests.fakes.paces import Still

MORE = 4  # primitives of a single step beyond mlx-lm's


@cache
def loaded(name: str) -> mlxgen.LanguageModel:
    """A tiny model whose steps do not depend on what they take here."""
    lm = tiny(name)
    lm.runtime.pace = Still()
    return lm


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("case", ALONE.values(), ids=ALONE)
def test_a_single_step_has_hardly_more_primitives_than_mlx_lms(
    name: str, case: primitives.Case
) -> None:
    ours, theirs = primitives.counts(loaded(name), case)
    assert ours.primitives <= theirs.primitives + MORE
    assert ours.kernels <= theirs.kernels + MORE


@pytest.mark.parametrize("name", [name for name in TINY if name != "qwen3_next"])
def test_tokens_with_a_draft_model_take_no_more_primitives_than_mlx_lms(name: str) -> None:
    ours, theirs = primitives.counts(loaded(name), DRAFTED)
    assert ours.primitives <= theirs.primitives
    assert ours.kernels <= theirs.kernels


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("case", TOGETHER.values(), ids=TOGETHER)
def test_a_step_of_a_batch_has_no_more_primitives_than_mlx_lms(
    name: str, case: primitives.Case
) -> None:
    ours, theirs = primitives.counts(loaded(name), case)
    assert ours.primitives <= theirs.primitives
    assert ours.kernels <= theirs.kernels


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("case", [*ALONE.values(), *TOGETHER.values()], ids=[*ALONE, *TOGETHER])
def test_no_step_copies_keys_and_values(name: str, case: primitives.Case) -> None:
    assert primitives.share_copied(loaded(name), case.ours) == 0


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("case", RAGGED.values(), ids=RAGGED)
def test_rows_that_run_more_than_others_copy_none_either(name: str, case: primitives.Case) -> None:
    assert primitives.share_copied(loaded(name), case.ours) == 0


def test_drafts_copy_no_more_than_mlx_lms_do() -> None:
    assert primitives.share_copied(loaded("llama"), DRAFTED.ours) == 0
    windows = loaded("gemma3_text")  # its caches join new keys to a window
    ours, theirs = (primitives.share_copied(windows, side) for side in DRAFTED[:2])
    assert 0 < ours <= theirs


def test_a_copy_of_keys_would_be_seen() -> None:
    keys = mx.zeros((2, 2, 128, 8))
    mx.eval(keys)

    def gathers() -> None:
        rows = mx.take(keys, mx.array([1, 0]), axis=0)
        mx.eval(mx.fast.scaled_dot_product_attention(keys[:, :, :1], rows, rows, scale=1.0))

    assert primitives.traffic(gathers) == (keys.nbytes, 2 * keys.nbytes)
    assert primitives.count(gathers).primitives == 4  # gather, squeeze, slice, attention
