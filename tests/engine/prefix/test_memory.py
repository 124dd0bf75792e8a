"""Sequences that begin alike share their KV: exactly, within a limit, and undisturbed."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import cache as once
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from mlxgen.engine.kv.slots import Slot
from mlxgen.engine.prefix.block import as_ids, in_common
from mlxgen.engine.prefix.store import BlockStore
from tests.fakes.architectures import SIDE_BY_SIDE, VOCAB, cache_kinds
from tests.fakes.filled_caches import (
    Ids,
    Make,
    check,
    fill,
    filled,
    go_on,
    holding,
    mixed_layers,
    plain_layers,
    row,
    state_layers,
    taken,
)
from tests.fakes.prefix_integrity import check_integrity
from tests.fakes.small_blocks import use_blocks

from ...effort import tries
from .kit import PLENTY, keep

MAKES = pytest.mark.parametrize("make", [plain_layers, state_layers, mixed_layers])
EACH = 16  # bytes of a token of plain layers
law = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


# ---- what a model would say --------------------------------------------------------------------


@once
def loaded(name: str) -> tuple[Any, Make]:
    return cache_kinds()[name]()


def feed(kv: Slot, model: Any, tokens: Sequence[int]) -> np.ndarray:
    """Run tokens and return the logits after the last one."""
    logits = kv.forward(model, mx.array([list(tokens)]))[0, -1]
    mx.eval(logits, kv.arrays())
    return np.array(logits)


def as_fresh(name: str, kv: Slot, ids: Sequence[int]) -> None:
    """What a KV says after these tokens is what a fresh one says; it holds them then."""
    model, make = loaded(name)
    logits = feed(kv, model, ids[kv.length :])
    np.testing.assert_allclose(logits, feed(row(make), model, ids), rtol=2e-3, atol=2e-3)


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, count)]


@pytest.mark.parametrize("block", [4, 256])
@settings(law, max_examples=tries(40))
@given(
    name=st.sampled_from([*cache_kinds()]),
    steps=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.booleans()), max_size=6),
)
def test_conversations_that_grow_part_and_repeat_say_what_fresh_ones_say(
    block: int, name: str, steps: list[tuple[int, int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_blocks(monkeypatch, block)
    _, make = loaded(name)
    cache, history, known = BlockStore(make, PLENTY), tokens(30), list[list[int]]()
    evicted = False
    for seed, (back, grow, evict) in enumerate([(0, 1, False), *steps]):
        history = [*history[: max(1, len(history) - back)], *tokens(grow, seed % 2)]
        usable, kv = cache.match(history), taken(cache, history) or row(make)
        assert kv.length == usable < len(history)
        if name in SIDE_BY_SIDE:
            best = max([0, *(in_common(as_ids(each), as_ids(history[:-1])) for each in known)])
            assert usable == best or (evicted and usable > best)
        as_fresh(name, kv, history)
        cache.keep(history, kv)
        for token in range(20):  # enough to turn every window round, which disturbs nobody
            feed(kv, loaded(name)[0], [token])
        known.append(history)
        assert cache.match([*history, 0]) == len(history)
        if evict:
            cache.shrink(cache.nbytes - 1)
            evicted, known = True, []
        check_integrity(cache)


# ---- random use --------------------------------------------------------------------------------


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


# Beginnings of two sequences that part after three tokens, with ends of their own.
BASES = [(0, 1, 2, 0, 0, 1, 1, 2), (0, 1, 2, 1, 0, 1, 1, 2)]
IDS = st.builds(
    lambda base, count, end: (*base[:count], *end),
    st.sampled_from(BASES),
    st.integers(0, 8),
    st.lists(st.integers(0, 2), max_size=2),
)
VERBS = st.sampled_from(["keep", "keep", "keep in", "take", "match", "shrink", "limit"])
STEPS = st.lists(st.tuples(VERBS, IDS, st.integers(0, 24)), max_size=30)


@pytest.mark.parametrize("block", [1, 3, 256])
@MAKES
@settings(law, max_examples=tries(480))
@given(steps=STEPS)
def test_random_use_of_any_layers_keeps_its_promises(
    make: Make, block: int, steps: list[tuple[str, Ids, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain layers in blocks of one token are a dictionary of token tuples."""
    use_blocks(monkeypatch, block)
    exact = EveryBeginning() if (make, block) == (plain_layers, 1) else None
    cache, kept = BlockStore(make, 2000 if exact is None else 20 * EACH), set[Ids]()
    for verb, ids, count in steps:
        before, bound = cache.nbytes, cache.max_bytes
        if verb.startswith("keep"):
            if verb == "keep in":
                bound = min(bound, count * EACH)
            keep(cache, make, ids, bound)
            kept.add(ids)
            assert cache.nbytes <= max(before, bound)
            if ids and (cache.nbytes != before or before + 48 * len(ids) < bound - 300):
                assert cache.match((*ids, 0)) == len(ids)  # it had room
            if exact is not None:
                fits, known = EACH * len(ids) <= bound, exact.match((*ids, 0)) == len(ids)
                bound = bound if fits and not known else before
                exact.use(ids if fits or known else ())
        elif verb == "take":
            usable, kv = cache.match(ids), taken(cache, ids)
            assert usable == (0 if kv is None else kv.length)
            if exact is not None:
                assert usable == exact.match(ids)
                exact.use(ids[:usable])
            if kv is not None:
                assert usable < len(ids) and any(each[:usable] == ids[:usable] for each in kept)
                check(kv, ids[:usable])
                go_on(kv, (0, 1, 2))
        elif verb == "match":
            cache.match(ids)
            assert cache.nbytes == before
        elif verb == "shrink":
            bound = count * (EACH if exact else 100)
            cache.shrink(bound)
        else:
            bound = cache.max_bytes = EACH * (2 + count) if exact else 80 * (2 + count)
        check_integrity(cache)
        if exact is not None:
            exact.evict(bound // EACH)
            assert cache.nbytes == len(exact.held) * EACH
    for ids in kept:
        if (kv := taken(cache, (*ids, 0))) is not None:
            check(kv, ids[: kv.length])


# ---- what goes first ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", [state_layers, mixed_layers])
def test_the_end_of_a_long_beginning_outlives_the_ends_of_many_short_turns(make: Make) -> None:
    beginning = tuple(range(200))
    turns = [(*beginning, *range(300 + n, 310 + n)) for n in range(12)]
    cache = BlockStore(make, PLENTY)
    keep(cache, make, beginning)
    cache.max_bytes = 4 * cache.nbytes
    for turn in turns:
        assert taken(cache, turn) is not None
        keep(cache, make, turn)
        check_integrity(cache)
    assert cache.match((*beginning, 0)) == cache.match((*turns[0], 0)) == len(beginning)
    assert cache.match((*turns[-1], 0)) == len(turns[-1])
    for n in range(30):  # but what nobody uses goes in the end
        keep(cache, make, tuple(range(1000 * n, 1000 * n + 150)))
    assert cache.match((*beginning, 0)) == 0


@pytest.mark.parametrize("make", [state_layers, mixed_layers])
def test_the_end_of_a_system_prompt_lives_as_long_as_what_goes_on_from_it(make: Make) -> None:
    system, cache = tuple(range(200)), BlockStore(make, PLENTY)
    chat = (*system, *range(300, 700))  # which has no block that ends with it
    keep(cache, make, system)
    keep(cache, make, chat)
    cache.max_bytes = 2 * cache.nbytes
    for n in range(1, 30):
        assert taken(cache, (*chat, n)) is not None
        keep(cache, make, tuple(range(1000 * n, 1000 * n + 250)))
    assert cache.match((*system, 999)) == len(system)


# ---- what is held in memory --------------------------------------------------------------------


def test_a_row_is_neither_kept_alive_nor_changed() -> None:
    ids, cache = tuple(range(8)), BlockStore(plain_layers, PLENTY)
    keep(cache, plain_layers, ids)  # what is allocated once is there now
    cache.clear()
    gc.collect()
    before = mx.get_active_memory()
    row = holding(plain_layers, tuple(range(1 << 16)))
    mx.eval(row.arrays())
    row.go_back(8)
    arrays = list(map(id, row.arrays()))
    cache.keep(ids, row)
    assert list(map(id, row.arrays())) == arrays and row.length == 8
    del row
    mx.synchronize()  # until then the copy that is computed holds it
    gc.collect()
    assert mx.get_active_memory() - before < 1 << 16  # a row of 1 MiB, of which 128 bytes are kept
    assert cache.nbytes == 8 * EACH


def test_what_is_evicted_before_it_is_settled_is_not_kept_alive() -> None:
    cache, row = BlockStore(plain_layers, 1 << 22), holding(plain_layers, tuple(range(1 << 16)))
    cache.keep(tuple(range(1 << 16)), row)
    mx.synchronize()
    before, held = mx.get_active_memory(), cache.nbytes
    assert held == EACH << 16
    cache.shrink(0)
    assert before - mx.get_active_memory() >= held


@pytest.mark.parametrize("layer", [RotatingKVCache, ChunkedKVCache])
@pytest.mark.parametrize("count", [3, 16, 17, 200])
def test_a_window_is_kept_without_the_keys_that_no_later_token_sees(
    layer: type[Any], count: int
) -> None:
    make: Make = lambda: [layer(16)]  # noqa: E731
    cache, ids = BlockStore(make, PLENTY), tuple(range(count))
    keep(cache, make, ids)  # one prefill
    assert cache.nbytes == min(count, 16) * 8
    kv = taken(cache, (*ids, 5))
    assert kv is not None
    (held,) = kv.others()
    assert held.offset == count
    assert held.keys_and_values()[0][0, 0, :, 0].tolist() == list(ids[-16:])


def test_only_what_every_layer_holds_of_the_tokens_is_kept() -> None:
    cache = BlockStore(plain_layers, PLENTY)
    cache.keep((1, 2, 3, 4), holding(plain_layers, (1, 2)))
    assert cache.match((1, 2, 3, 4)) == 2
    cache = BlockStore(state_layers, PLENTY)
    cache.keep((1, 2), holding(state_layers, (1, 2, 3)))  # nor a state after more tokens
    assert cache.match((1, 2, 4)) == 0
    never: Make = lambda: [KVCache(), CacheList(KVCache(), KVCache())]  # noqa: E731
    cache, caches = BlockStore(never, PLENTY), never()
    fill([caches[0], caches[1].caches[0]], (1, 2, 3))
    cache.keep((1, 2, 3), filled(never, caches, 3))
    kv = taken(cache, (1, 2, 3, 4))
    assert kv is not None and kv.group.layers[2].empty()
    check(kv, (1, 2, 3))


# ---- a device that fails -----------------------------------------------------------------------


def _failing(*arrays: object) -> None:
    raise RuntimeError("no memory")


@MAKES
def test_what_was_never_computed_leaves_nothing_behind(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_blocks(monkeypatch, 2)
    old = (1, 2, 3, 4, 5, 6)
    for ids in ((*old, 7, 8), (1, 2, 3, 9, 9, 9, 9), (7, 8, 9)):
        cache, more = BlockStore(make, PLENTY), (*ids, 5, 5, 5)
        with monkeypatch.context() as patch:  # nobody waits for what is kept
            patch.setattr(mx, "eval", _failing)
            keep(cache, make, old)
        cache.settle()
        before = cache.nbytes
        with monkeypatch.context() as patch, suppress(RuntimeError):
            patch.setattr(mx, "async_eval", _failing)
            keep(cache, make, ids)
        check_integrity(cache)
        assert cache.nbytes == before and cache.match((*ids, 0)) < len(ids)
        for fails in (cache.forget, cache.settle):
            keep(cache, make, ids)
            keep(cache, make, more)
            assert cache.match((*ids, 0)) == len(ids)
            with monkeypatch.context() as patch:
                patch.setattr(mx, "eval", _failing)
                fails()
            check_integrity(cache)
            assert cache.match((*ids, 0)) < len(ids) and cache.match((*more, 0)) < len(ids)
            assert cache.match((*old, 0)) == len(old)
