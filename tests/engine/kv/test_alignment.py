"""The KV cache rewinds exactly on every cache type that mlx-lm has."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen.engine.history import History
from mlxgen.engine.kv import KV, Later, Unread
from mlxgen.engine.kv.held import stacked
from mlxgen.engine.step.runner import Runner
from tests.fakes.architectures import VOCAB, cache_kinds

from ...effort import tries

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
        logits = kv.run(piece)[-1]
        mx.eval(logits)
        kv.wait()
    assert logits is not None
    return np.array(logits)


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, count)]


def catch_up(kv: KV, model: Any, history: list[int]) -> np.ndarray:
    """Align a cache with a history and run what is pending."""
    pending = kv.align(History(history))
    assert pending == history[kv.length :]
    return feed(kv, model, pending)


def fresh(model: Any, make: Callable[[], list[Any]], history: list[int]) -> np.ndarray:
    return feed(KV(Runner(model, make)), model, history)


@pytest.mark.parametrize("back", [1, 2, 5, 11, 20, 37])
@pytest.mark.parametrize("eager", [False, True])
def test_after_a_rewind_the_next_logits_are_those_of_a_fresh_run(
    kind: Any, back: int, eager: bool
) -> None:
    model, make = kind
    history = tokens(38)
    kv = KV(Runner(model, make))
    if eager:
        kv.expect_rewinds()
    feed(kv, model, history[:9])
    feed(kv, model, history[9:], one_by_one=True)
    kept = history[: len(history) - back]
    assert len(kv.align(History(kept))) >= 1
    assert kv.length < len(kept)
    other = [*kept, *tokens(3, seed=7)]
    np.testing.assert_allclose(
        catch_up(kv, model, other), fresh(model, make, other), rtol=2e-3, atol=2e-3
    )


def test_a_fork_and_its_origin_do_not_see_each_other(kind: Any) -> None:
    model, make = kind
    history = tokens(21)
    kv = KV(Runner(model, make))
    feed(kv, model, history)
    twin = kv.fork()
    left, right = [*history, 1, 2, 3], [*history, 4, 5]
    catch_up(kv, model, left)
    got = catch_up(twin, model, right)
    np.testing.assert_allclose(got, fresh(model, make, right), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(
        catch_up(kv, model, [*left, 6]), fresh(model, make, [*left, 6]), rtol=2e-3, atol=2e-3
    )


def test_a_cache_that_holds_the_history_stays_as_it_is(kind: Any) -> None:
    model, make = kind
    kv = KV(Runner(model, make))
    feed(kv, model, tokens(5))
    assert kv.align(History(tokens(5)), most=5) == []
    assert kv.align(History([*tokens(5), 1, 2])) == [1, 2]
    assert kv.length == 5


@pytest.mark.parametrize("name", ["recurrent", "hybrid", "sliding window", "rotating"])
def test_untrimmable_caches_go_back_to_a_checkpoint_and_not_to_the_start(name: str) -> None:
    model, make = loaded(name)
    kv = KV(Runner(model, make))
    kv.expect_rewinds()
    history = tokens(150)
    feed(kv, model, history[:70])
    feed(kv, model, history[70:], one_by_one=True)
    kv.align(History(history[:145]))
    assert 64 <= kv.length < 145


def test_plain_caches_take_no_checkpoints_and_lose_nothing() -> None:
    model, make = loaded("plain")
    kv = KV(Runner(model, make))
    kv.expect_rewinds()
    feed(kv, model, tokens(100), one_by_one=True)
    assert kv.store.can_undo(1)
    kv.align(History(tokens(100)[:61]))
    assert kv.length == 60


def test_tokens_that_nobody_has_read_are_compared_when_they_are() -> None:
    model, make = loaded("plain")
    kv, drawn = KV(Runner(model, make)), Unread(mx.array([7, 8]))
    kv.run([1, 2])
    kv.run([Later(drawn, 0)])
    kv.run([Later(drawn, 1), 9])
    history = History([1, 2, 7, 8, 9, 3])
    assert kv.common(history) == 5
    history.cut(3)
    history.append(6)
    assert kv.common(history) == 3
    history.cut(2)
    history.append(5)
    assert kv.align(history) == [5]


def test_padding_is_of_the_array_that_it_is_beside(tmp_path: Path) -> None:
    drawn, graph = Unread(mx.array([7, 8, 9])), tmp_path / "graph.dot"
    array = stacked([[Later(drawn, 0)], [], [Later(drawn, 2)]])
    mx.export_to_dot(str(graph), array)
    assert graph.read_text().count("Gather") == 1 and "Concatenate" not in graph.read_text()
    assert array.tolist() == [[7], [7], [9]]
    assert stacked([[1, 2], [Later(drawn, 1)], []]).tolist() == [[1, 2], [8, 8], [8, 8]]


def test_a_pass_that_fails_leaves_nothing() -> None:
    model, make = loaded("plain")
    runner = Runner(model, make)
    kv, history = KV(runner), History(tokens(9))
    kv.run(history[:5])

    def fails(inputs: mx.array, cache: list[Any]) -> mx.array:
        model(inputs[:, :1], cache=cache)
        raise RuntimeError("half-way")

    runner.model = fails
    with pytest.raises(RuntimeError):
        kv.run(history[5:])
    assert kv.align(history) == list(history)


def test_aligning_looks_at_what_has_changed_only() -> None:
    looks = 0

    class Counting(History):
        def __getitem__(self, index: Any) -> Any:
            nonlocal looks
            looks += isinstance(index, int)
            return super().__getitem__(index)

    history, kv = Counting(tokens(500)), KV(Runner(*loaded("plain")))
    kv.run(list(history), wanted=0)
    looks = 0
    assert kv.common(history) == looks == 500
    for _ in range(10):
        looks = 0
        history.cut(len(history) - 3)
        history += [1, 2]
        kv.run([7], wanted=0)
        kv.align(history, len(history))
        assert kv.length == len(history) - 2 and looks <= 4
        kv.run([1, 2], wanted=0)
        assert kv.common(history) == len(history)
        assert looks <= 8


@settings(max_examples=tries(15))
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 12), st.booleans(), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    name=st.sampled_from(KINDS),
)
def test_aligning_equals_an_empty_cache_that_ran_the_history(
    steps: list[tuple[int, int, bool, bool]], name: str
) -> None:
    model, make = loaded(name)
    kv, history, seed = KV(Runner(model, make)), History(tokens(4)), 1
    for grow, back, fork, stray in steps:
        seed += 1
        feed(kv, model, kv.align(history))
        if stray:  # a look-ahead or a draft that turns out wrong
            kv.run(tokens(2, seed))
        if fork:
            other = kv.fork()
            feed(kv, model, tokens(2, seed))  # the origin goes astray
            kv, history = other, history.fork()
        history.cut(max(1, len(history) - back))
        history += tokens(grow, seed)
        same = kv.common(history)
        pending = kv.align(history)
        assert kv.length <= min(same, len(history) - 1)
        assert pending == history[kv.length :]
    np.testing.assert_allclose(
        feed(kv, model, kv.align(history)), fresh(model, make, history), rtol=2e-3, atol=2e-3
    )
    assert kv.common(history) == len(history)


@settings(max_examples=tries(100))
@given(
    moves=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=12),
    asked=st.integers(0, 12),
)
def test_a_history_knows_how_far_back_it_was_cut_since_any_moment(
    moves: list[tuple[int, int]], asked: int
) -> None:
    history, lows, lengths, moments = History(range(10)), [10], [10], [0]
    for back, grow in moves:
        history.cut(max(0, len(history) - back))
        lows = [min(low, len(history)) for low in lows]
        history += range(grow)
        lows.append(len(history))
        lengths.append(len(history))
        moments.append(history.moment)
    asked = min(asked, len(moments) - 1)
    low = history.fork().low_since(moments[asked])
    assert min(low, lengths[asked]) == lows[asked]


def test_nothing_but_a_kv_takes_back_what_a_cache_holds() -> None:
    package = Path(mlxgen.__file__).parent
    told = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Trim"
    }
    assert told == {"engine/kv/kv.py"}  # when it is aligned
