"""Sequences that begin alike share their KV, exactly, within a limit, and undisturbed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxgen.engine.kv.alone import Alone
from mlxgen.engine.prefix.store import BlockStore
from tests.fakes.architectures import SIDE_BY_SIDE, VOCAB, cache_kinds
from tests.fakes.prefix_integrity import check_integrity
from tests.fakes.small_blocks import use_blocks

from ...effort import tries

Make = Callable[[], list[Any]]

PLENTY = 1 << 40
_models: dict[str, tuple[Any, Make]] = {}


def loaded(name: str) -> tuple[Any, Make]:
    if name not in _models:
        _models[name] = cache_kinds()[name]()
    return _models[name]


@pytest.fixture(params=cache_kinds())
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def feed(kv: Alone, model: Any, tokens: Sequence[int]) -> np.ndarray:
    """Run tokens and return the logits behind the last one."""
    logits = kv.forward(model, mx.array([list(tokens)]))[0, -1]
    mx.eval(logits, kv.arrays())
    return np.array(logits)


def fresh(name: str, tokens: Sequence[int]) -> np.ndarray:
    model, make = loaded(name)
    return feed(Alone(make), model, tokens)


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, count)]


def row_of(name: str, history: Sequence[int], *, decoded: int = 5) -> Alone:
    """A row that prefilled in two pieces and decoded its last tokens one by one."""
    model, make = loaded(name)
    kv, end = Alone(make), len(history) - decoded
    pieces = [history[: end // 2], history[end // 2 : end], *([t] for t in history[end:])]
    for piece in pieces:
        feed(kv, model, piece)
    return kv


def bytes_of(cache: BlockStore) -> list[bytes]:
    """The content of every array that the cache holds."""
    held = [block.arrays() for block in cache._blocks]
    return [np.array(array.view(mx.uint8)).tobytes() for arrays in held for array in arrays]


def equal(left: np.ndarray, right: np.ndarray) -> None:
    np.testing.assert_allclose(left, right, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("length", [9, 38, 70])
def test_what_was_inserted_is_taken_and_the_next_logits_are_those_of_a_fresh_prefill(
    kind: str, length: int
) -> None:
    model, make = loaded(kind)
    cache, history = BlockStore(make, PLENTY), tokens(length)
    cache.keep(history, row_of(kind, history))
    check_integrity(cache)
    longer = [*history, *tokens(4, seed=1)]
    assert cache.match(longer) == length
    kv = cache.take(longer)
    assert kv is not None and kv.length == length
    equal(feed(kv, model, longer[length:]), fresh(kind, longer))
    check_integrity(cache)


@pytest.mark.parametrize("shared", [0, 1, 7, 20, 37, 38])
@pytest.mark.parametrize("more", [0, 3])
def test_a_query_that_parts_inside_or_ends_inside_takes_what_it_can_exactly(
    kind: str, shared: int, more: int
) -> None:
    model, make = loaded(kind)
    cache, history = BlockStore(make, PLENTY), tokens(38)
    kv = Alone(make)
    feed(kv, model, history[:20])
    cache.keep(history, kv)
    feed(kv, model, history[20:])
    cache.keep(history, kv)
    check_integrity(cache)
    query = [*history[:shared], *((t + 1) % VOCAB for t in history[shared : shared + more])]
    usable = cache.match(query)
    if kind in SIDE_BY_SIDE:
        assert usable == max(0, min(shared, len(query) - 1))
    elif shared > 20:
        assert usable >= 20
    taken = cache.take(query)
    assert (taken is None) == (usable == 0)
    if taken is not None:
        assert taken.length == usable < len(query)
        equal(feed(taken, model, query[usable:]), fresh(kind, query))


def test_rows_and_the_cache_do_not_disturb_one_another(kind: str) -> None:
    model, make = loaded(kind)
    cache, history = BlockStore(make, PLENTY), tokens(30)
    row, untouched = row_of(kind, history), row_of(kind, history)
    cache.keep(history, row)
    before = bytes_of(cache)
    assert before
    one, other = cache.take([*history, 1]), cache.take([*history, 2])
    assert one is not None and other is not None
    for token in range(20):  # enough to turn every window round
        equal(feed(row, model, [token]), feed(untouched, model, [token]))
        feed(one, model, [token + 20])
        feed(other, model, [token + 40])
    assert bytes_of(cache) == before
    equal(feed(one, model, [3]), fresh(kind, [*history, *range(20, 40), 3]))
    equal(feed(other, model, [3]), fresh(kind, [*history, *range(40, 60), 3]))
    check_integrity(cache)


def test_what_was_taken_can_be_kept_again_and_a_tail_replaces_what_it_begins_with(
    kind: str,
) -> None:
    model, make = loaded(kind)
    cache, history = BlockStore(make, PLENTY), tokens(24)
    cache.keep(history, row_of(kind, history))
    once = cache.nbytes
    for seed in (1, 2):
        longer = [*history, *tokens(6, seed)]
        kv = cache.take(longer)
        assert kv is not None
        feed(kv, model, longer[kv.length :])
        cache.keep(longer, kv)
        check_integrity(cache)
        assert cache.match([*longer, 0]) == len(longer)
    if kind in SIDE_BY_SIDE and kind != "quantised later":  # its first tokens take more bytes
        assert cache.nbytes * 24 == once * 2 * (24 + 6)
    before = cache.nbytes
    cache.keep(history, row_of(kind, history))
    assert cache.nbytes == before


@pytest.fixture(params=[4, 256])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many tokens a block has."""
    use_blocks(monkeypatch, request.param)
    return int(request.param)


@settings(max_examples=tries(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([*cache_kinds()]),
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 7), st.booleans()), max_size=6),
)
def test_conversations_that_grow_branch_and_repeat_end_as_fresh_runs(
    block: int, name: str, steps: list[tuple[int, int, bool]]
) -> None:
    model, make = loaded(name)
    cache, history = BlockStore(make, PLENTY), tokens(12)
    for seed, (back, grow, evict) in enumerate(steps):
        history = [*history[: len(history) - back or 1], *tokens(grow, seed % 2)]
        kv = cache.take(history) or Alone(make)
        equal(feed(kv, model, history[kv.length :]), fresh(name, history))
        cache.keep(history, kv)
        if evict:
            cache.shrink(cache.nbytes - 1)
        check_integrity(cache)
