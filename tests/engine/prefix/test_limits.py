"""The prefix cache keeps to its limit, and to the order in which things were used."""

from __future__ import annotations

import gc
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache, RotatingKVCache

from mlxgen.engine.kv.alone import Alone
from mlxgen.engine.kv.layers import arrays_in
from mlxgen.engine.prefix.store import BlockStore
from tests.fakes.filled_caches import (
    Ids,
    Make,
    check,
    fill,
    holding,
    mixed_layers,
    plain_layers,
    state_layers,
)
from tests.fakes.prefix_integrity import check_integrity
from tests.fakes.small_blocks import use_blocks

from ...effort import tries

PLENTY = 1 << 40


class EveryBeginning:
    """One entry for each beginning of each sequence; whoever uses one uses all before it."""

    def __init__(self) -> None:
        self.held: OrderedDict[Ids, None] = OrderedDict()

    def match(self, ids: Ids) -> int:
        return max((n for n in range(len(ids)) if ids[:n] in self.held), default=0)

    def use(self, ids: Ids) -> None:
        for n in range(len(ids), 0, -1):
            self.held.pop(ids[:n], None)
            self.held[ids[:n]] = None

    def evict(self, entries: int) -> None:
        while len(self.held) > entries:
            self.held.popitem(last=False)


@pytest.fixture
def by_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one token."""
    use_blocks(monkeypatch, 1)


EACH = 16  # bytes of a token

# Beginnings of two sequences that part after three tokens, with ends of their own.
BASES = [(0, 1, 2, 0, 0, 1, 1, 2), (0, 1, 2, 1, 0, 1, 1, 2)]
IDS = st.builds(
    lambda base, count, end: (*base[:count], *end),
    st.sampled_from(BASES),
    st.integers(0, 8),
    st.lists(st.integers(0, 2), max_size=2),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "take", "match", "shrink", "limit"]), IDS),
    max_size=30,
)


@settings(max_examples=tries(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_random_use_agrees_with_a_dict_of_token_tuples(
    by_the_token: None, steps: list[tuple[str, Ids]]
) -> None:
    expected, limit = EveryBeginning(), 20 * EACH
    cache = BlockStore(plain_layers, limit)
    for verb, ids in steps:
        bound = limit
        if verb == "insert":
            cache.keep(ids, holding(plain_layers, ids))
            if ids and EACH * len(ids) <= limit:
                expected.use(ids)
        elif verb == "take":
            kv = cache.take(ids)
            known = expected.match(ids)
            assert (0 if kv is None else kv.length) == known
            if kv is not None:
                check(kv.caches, ids[:known])
                expected.use(ids[:known])
        elif verb == "match":
            assert cache.match(ids) == expected.match(ids)
        elif verb == "shrink":
            bound = EACH * len(ids)
            cache.shrink(bound)
        else:
            bound = limit = EACH * (2 + 3 * len(ids))
            cache.max_bytes = limit
        expected.evict(bound // EACH)
        check_integrity(cache)
        assert cache.nbytes == len(expected.held) * EACH


@pytest.mark.parametrize("block", [1, 3, 256])
@pytest.mark.parametrize("make", [plain_layers, state_layers, mixed_layers])
@settings(max_examples=tries(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_random_use_of_any_cache_keeps_its_promises(
    make: Make, block: int, monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, Ids]]
) -> None:
    use_blocks(monkeypatch, block)
    cache, given_ids = BlockStore(make, 2000), set[Ids]()
    for verb, ids in steps:
        before = cache.nbytes
        if verb == "insert":
            cache.keep(ids, holding(make, ids))
            given_ids.add(ids)
            if ids and before + 48 * len(ids) < 2000 - 300:  # with room, it is there now
                assert cache.match((*ids, 0)) == len(ids)
        elif verb == "take":
            usable, kv = cache.match(ids), cache.take(ids)
            assert usable == (0 if kv is None else kv.length)
            if kv is not None:
                assert kv.length < len(ids)
                assert any(known[:usable] == ids[:usable] for known in given_ids)
                check(kv.caches, ids[:usable])
                fill(kv.caches, (0, 1, 2))  # a row that goes on
        elif verb == "match":
            cache.match(ids)
            assert cache.nbytes == before
        elif verb == "shrink":
            cache.shrink(100 * len(ids))
            assert cache.nbytes <= 100 * len(ids)
        else:
            cache.max_bytes = 2000
        check_integrity(cache)
    for ids in given_ids:
        kv = cache.take((*ids, 0))
        if kv is not None:
            check(kv.caches, ids[: kv.length])


def test_a_long_sequence_nobody_asks_for_goes_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_blocks(monkeypatch, 8)
    cache = BlockStore(plain_layers, 16 * 40)
    long, short = tuple(range(36)), tuple(range(50, 58))
    cache.keep(long, holding(plain_layers, long))
    cache.keep(short, holding(plain_layers, short))
    assert cache.match((*long, 0)) == 32
    assert cache.match((*short, 0)) == 8


def test_an_old_state_in_the_middle_of_a_conversation_goes_before_its_newest_one() -> None:
    cache = BlockStore(state_layers, 3 * 16)
    conversation = tuple(range(12))
    for end in (4, 8, 12):
        cache.keep(
            conversation,
            Alone(state_layers, holding(state_layers, conversation[:end]).caches, end),
        )
    assert cache.match((*conversation[:10], 90)) == 8
    cache.take((*conversation[:4], 90))
    cache.keep((70, 71), holding(state_layers, (70, 71)))
    check_integrity(cache)
    found = [cache.match((*conversation[:end], 90)) for end in (4, 8, 12)]
    assert found == [4, 4, 12]


@pytest.mark.parametrize("make", [state_layers, mixed_layers])
def test_the_end_of_a_long_beginning_outlives_the_ends_of_many_short_turns(make: Make) -> None:
    beginning, turns = tuple(range(200)), [tuple(range(300 + n, 310 + n)) for n in range(12)]
    cache = BlockStore(make, PLENTY)
    cache.keep(beginning, holding(make, beginning))
    cache.max_bytes = 4 * cache.nbytes
    for turn in turns:
        assert cache.take((*beginning, *turn)) is not None
        cache.keep((*beginning, *turn), holding(make, (*beginning, *turn)))
        check_integrity(cache)
    ends = [cache.match((*beginning, *turn, 0)) for turn in turns]
    assert cache.match((*beginning, 0)) == len(beginning)
    assert ends[0] == len(beginning) and ends[-1] == len(beginning) + 10


def test_what_nobody_uses_goes_in_the_end_however_long_it_took_to_run() -> None:
    cache, long = BlockStore(state_layers, 16 * 2), tuple(range(100))
    cache.keep(long, holding(state_layers, long))
    for n in range(30):
        cache.keep((200 + n, *range(9)), holding(state_layers, (200 + n, *range(9))))
    assert cache.match((*long, 0)) == 0


def test_what_is_larger_than_the_limit_alone_is_not_kept_and_evicts_nothing() -> None:
    cache = BlockStore(plain_layers, 16 * 12)
    small, other, large = (1, 2, 3, 4), tuple(range(50, 58)), tuple(range(20, 33))
    grown = (*small, *range(60, 69))
    cache.keep(small, holding(plain_layers, small))
    cache.keep(other, holding(plain_layers, other))
    for too_large in (large, grown):
        cache.keep(too_large, holding(plain_layers, too_large))
        assert [cache.match((*ids, 0)) for ids in (small, other, large)] == [4, 8, 0]
    cache.max_bytes = 16 * 13
    cache.keep(grown, holding(plain_layers, grown))
    assert [cache.match((*ids, 0)) for ids in (grown, other)] == [13, 0]
    check_integrity(cache)


def test_a_cleared_cache_has_nothing_and_works_again() -> None:
    cache = BlockStore(mixed_layers, PLENTY)
    cache.keep((1, 2, 3), holding(mixed_layers, (1, 2, 3)))
    cache.clear()
    check_integrity(cache)
    assert (cache.nbytes, cache.match((1, 2, 3))) == (0, 0)
    cache.keep((1, 2, 3), holding(mixed_layers, (1, 2, 3)))
    assert cache.match((1, 2, 3, 4)) == 3
    check_integrity(cache)


def test_only_the_tokens_that_the_kv_holds_are_kept() -> None:
    cache = BlockStore(plain_layers, PLENTY)
    cache.keep((1, 2, 3, 4), holding(plain_layers, (1, 2)))
    assert cache.match((1, 2, 3, 4)) == 2


def test_the_caches_of_a_row_are_not_kept_alive_nor_changed() -> None:
    ids = tuple(range(8))
    cache = BlockStore(plain_layers, PLENTY)
    cache.keep(ids, holding(plain_layers, ids))  # what is allocated once is there now
    cache.clear()
    gc.collect()
    before = mx.get_active_memory()
    caches = plain_layers()
    fill(caches, tuple(range(1 << 16)))
    mx.eval([layer.state for layer in caches[:1]])
    row = Alone(plain_layers, caches, 1 << 16)
    row.go_back(8)
    arrays = [id(array) for array in arrays_in(row.caches)]
    cache.keep(ids, row)
    assert [id(array) for array in arrays_in(row.caches)] == arrays
    assert row.length == 8
    del row, caches
    gc.collect()
    assert mx.get_active_memory() - before < 1 << 16  # a row of 1 MiB, of which 128 bytes are kept
    assert cache.nbytes == 8 * 16


def test_what_is_evicted_before_it_is_settled_is_not_kept_alive() -> None:
    cache, ids = BlockStore(plain_layers, 1 << 22), tuple(range(1 << 16))
    row = holding(plain_layers, ids)
    cache.keep(ids, row)
    before = cache.nbytes
    assert before == 16 << 16
    mx.synchronize()
    held = mx.get_active_memory()
    cache.shrink(0)
    assert held - mx.get_active_memory() >= before


def test_there_is_room_behind_what_was_taken_for_the_rest_and_a_first_step() -> None:
    cache, ids = BlockStore(plain_layers, PLENTY), tuple(range(300))
    cache.keep(ids, holding(plain_layers, ids))
    for rest, room in ((1, 512), (211, 512), (212, 768)):
        kv = cache.take((*ids, *range(rest)))
        assert kv is not None
        assert kv.caches[0].keys.shape == (1, 1, room, 1)


@pytest.mark.parametrize("make", [plain_layers, state_layers, mixed_layers])
@pytest.mark.parametrize("ids", [(1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 9, 9, 9, 9), (1, 2, 3, 4, 5)])
def test_a_copy_that_fails_leaves_nothing_behind(
    make: Make, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_blocks(monkeypatch, 2)
    cache = BlockStore(make, PLENTY)
    cache.keep((1, 2, 3, 4, 5, 6), holding(make, (1, 2, 3, 4, 5, 6)))
    before, known, kv = cache.nbytes, cache.match((*ids, 0)), holding(make, ids)
    with monkeypatch.context() as patch:
        patch.setattr(mx, "async_eval", _failing)
        with suppress(RuntimeError):  # if it is held already, nothing is copied
            cache.keep(ids, kv)
            known = len(ids)
    check_integrity(cache)
    assert cache.nbytes == before or known == len(ids)
    assert cache.match((*ids, 0)) == known
    cache.keep(ids, kv)
    assert cache.match((*ids, 0)) == len(ids)
    check_integrity(cache)


@pytest.mark.parametrize("make", [plain_layers, state_layers, mixed_layers])
def test_nobody_waits_for_what_is_inserted(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, 2)
    cache = BlockStore(make, PLENTY)
    kvs = {ids: holding(make, ids) for ids in [(1, 2, 3, 4, 5, 6), (1, 2, 3, 9, 9)]}
    with monkeypatch.context() as patch:
        patch.setattr(mx, "eval", _failing)
        for ids, kv in kvs.items():
            cache.keep(ids, kv)
    for ids in kvs:
        taken = cache.take((*ids, 0))
        assert taken is not None
        check(taken.caches, ids)


@pytest.mark.parametrize("make", [plain_layers, state_layers, mixed_layers])
@pytest.mark.parametrize("ids", [(1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 9, 9, 9, 9), (7, 8, 9)])
def test_what_may_never_have_been_computed_is_dropped_with_what_goes_on_from_it(
    make: Make, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_blocks(monkeypatch, 2)
    cache, old = BlockStore(make, PLENTY), (1, 2, 3, 4, 5, 6)
    cache.keep(old, holding(make, old))
    cache.settle()
    cache.keep(ids, holding(make, ids))
    cache.keep((*ids, 5, 5, 5), holding(make, (*ids, 5, 5, 5)))
    assert cache.match((*ids, 0)) == len(ids)
    cache.forget()
    check_integrity(cache)
    assert cache.match((*ids, 0)) < len(ids) and cache.match((*ids, 5, 5, 5, 0)) < len(ids)
    assert cache.match((*old, 0)) == len(old)
    cache.forget()  # there is nothing any more
    check_integrity(cache)
    cache.keep(ids, holding(make, ids))
    assert cache.match((*ids, 0)) == len(ids)


def _failing(*arrays: object) -> None:
    raise RuntimeError("no memory")


@pytest.mark.parametrize("turn", [1, -1])
def test_the_shortest_sequence_that_goes_on_serves_a_shared_beginning(turn: int) -> None:
    cache, common = BlockStore(mixed_windows, PLENTY), (1, 2, 3)
    for ids in [(*common, *range(20, 30)), (*common, 4)][::turn]:  # the first fills its window
        cache.keep(ids, holding(mixed_windows, ids))
    kv = cache.take((*common, 99))
    assert kv is not None and kv.length == 3
    check(kv.caches, common)


def test_any_beginning_is_usable_while_no_window_is_full() -> None:
    cache, ids = BlockStore(mixed_windows, PLENTY), tuple(range(7))
    cache.keep(ids, holding(mixed_windows, ids))
    for shared in range(1, 8):
        kv = cache.take((*ids[:shared], 99))
        assert kv is not None and kv.length == shared
        check(kv.caches, ids[:shared])
    full = (*ids, 7, 8)
    cache.keep(full, holding(mixed_windows, full))
    assert cache.match((*full[:8], 99)) == 7
    check_integrity(cache)


def mixed_windows() -> list[Any]:
    return [KVCache(), RotatingKVCache(max_size=8)]


@pytest.mark.parametrize("make", [state_layers, mixed_layers])
@settings(max_examples=tries(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kept=st.lists(st.tuples(IDS, st.integers(0, 24)), min_size=1, max_size=12),
    tokens=st.integers(1, 3),
)
def test_what_was_kept_is_there_whatever_its_room_evicted(
    monkeypatch: pytest.MonkeyPatch, make: Make, kept: list[tuple[Ids, int]], tokens: int
) -> None:
    use_blocks(monkeypatch, tokens)
    cache = BlockStore(make, PLENTY)
    for ids, room in kept:
        before = cache.nbytes
        cache.keep(ids, holding(make, ids), room=room * EACH)
        check_integrity(cache)
        assert cache.nbytes <= max(before, room * EACH)
        if ids and cache.nbytes != before:
            assert cache.match((*ids, 0)) == len(ids)
