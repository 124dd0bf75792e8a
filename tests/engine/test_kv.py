"""The KV cache rewinds exactly on every cache type that mlx-lm has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.engine.kv import KV
from tests.fakes.architectures import VOCAB, cache_kinds

from ..effort import tries

KINDS = list(cache_kinds())
_models: dict[str, Any] = {}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Any, Callable[[], list[Any]]]:
    return loaded(request.param)


def loaded(name: str) -> tuple[Any, Callable[[], list[Any]]]:
    if name not in _models:
        _models[name] = cache_kinds()[name]()
    pair: tuple[Any, Callable[[], list[Any]]] = _models[name]
    return pair


def feed(kv: KV, model: Any, tokens: list[int], *, one_by_one: bool = False) -> np.ndarray:
    """Run tokens and return the logits behind the last one."""
    pieces = [[t] for t in tokens] if one_by_one else [tokens]
    logits = None
    for piece in pieces:
        logits = kv.forward(model, mx.array([piece]))[0, -1]
        mx.eval(logits, kv.arrays())
        kv.checkpoint()
    assert logits is not None
    return np.array(logits)


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, count)]


def catch_up(kv: KV, model: Any, history: list[int]) -> np.ndarray:
    """Run what the cache lacks of a history; at least its last token."""
    if kv.length == len(history):
        kv.rewind(kv.length - 1)
    return feed(kv, model, history[kv.length :])


def fresh(model: Any, make: Callable[[], list[Any]], history: list[int]) -> np.ndarray:
    return feed(KV(make), model, history)


@pytest.mark.parametrize("back", [1, 2, 5, 11, 20, 37])
@pytest.mark.parametrize("eager", [False, True])
def test_after_a_rewind_the_next_logits_are_those_of_a_fresh_run(
    kind: Any, back: int, eager: bool
) -> None:
    model, make = kind
    history = tokens(38)
    kv = KV(make)
    if eager:
        kv.expect_rewinds()
    feed(kv, model, history[:9])
    feed(kv, model, history[9:], one_by_one=True)
    kept = history[: len(history) - back]
    kv.rewind(len(kept))
    assert kv.length <= len(kept)
    other = [*kept, *tokens(3, seed=7)]
    np.testing.assert_allclose(
        catch_up(kv, model, other), fresh(model, make, other), rtol=2e-3, atol=2e-3
    )


def test_a_fork_and_its_origin_do_not_see_each_other(kind: Any) -> None:
    model, make = kind
    history = tokens(21)
    kv = KV(make)
    feed(kv, model, history)
    twin = kv.fork()
    left, right = [*history, 1, 2, 3], [*history, 4, 5]
    catch_up(kv, model, left)
    got = catch_up(twin, model, right)
    np.testing.assert_allclose(got, fresh(model, make, right), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(
        catch_up(kv, model, [*left, 6]), fresh(model, make, [*left, 6]), rtol=2e-3, atol=2e-3
    )


def test_a_rewind_to_or_behind_the_end_does_nothing(kind: Any) -> None:
    model, make = kind
    kv = KV(make)
    feed(kv, model, tokens(5))
    kv.rewind(5)
    kv.rewind(9)
    assert kv.length == 5


@pytest.mark.parametrize("name", ["recurrent", "hybrid", "sliding window", "rotating"])
def test_untrimmable_caches_go_back_to_a_checkpoint_and_not_to_the_start(name: str) -> None:
    model, make = loaded(name)
    kv = KV(make)
    kv.expect_rewinds()
    history = tokens(150)
    feed(kv, model, history[:70])
    feed(kv, model, history[70:], one_by_one=True)
    kv.rewind(145)
    assert 64 <= kv.length <= 145


def test_plain_caches_take_no_checkpoints_and_lose_nothing() -> None:
    model, make = loaded("plain")
    kv = KV(make)
    kv.expect_rewinds()
    feed(kv, model, tokens(100), one_by_one=True)
    assert kv.can_undo(1)
    kv.rewind(60)
    assert kv.length == 60


@settings(deadline=None, max_examples=tries(15))
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 12), st.booleans()), min_size=1, max_size=8
    ),
    name=st.sampled_from(KINDS),
)
def test_any_history_of_runs_rewinds_and_forks_ends_as_a_fresh_run(
    steps: list[tuple[int, int, bool]], name: str
) -> None:
    model, make = loaded(name)
    kv, history, seed = KV(make), tokens(4), 1
    feed(kv, model, history)
    for grow, back, fork in steps:
        seed += 1
        if fork:
            other = kv.fork()
            feed(kv, model, tokens(2, seed))  # the origin goes astray
            kv = other
        history = history[: max(1, len(history) - back)]
        kv.rewind(len(history))
        history = [*history, *tokens(grow, seed)]
        catch_up(kv, model, history)
        assert kv.length == len(history)
    probe = [*history, 3]
    np.testing.assert_allclose(
        catch_up(kv, model, probe), fresh(model, make, probe), rtol=2e-3, atol=2e-3
    )
