"""Runners that are given the same commands keep the same prefixes, whatever their disks do."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from mlxgen.engine.history import History
from mlxgen.engine.kv.commands import Command, Drop, Free, Take, read, uses_files, written
from mlxgen.engine.kv.footprint import Footprint
from mlxgen.engine.kv.kv import KV
from mlxgen.engine.kv.runner import Runner
from mlxgen.engine.prefix.block import BLOCK, Block
from mlxgen.engine.prefix.block_file import Layout
from mlxgen.engine.prefix.disk import Disk
from mlxgen.engine.prefix.store import BlockStore
from mlxgen.errors import LoadError, MlxgenError
from mlxgen.tokens import Token
from tests.fakes.prefix_integrity import check_integrity

from ...effort import tries

PLENTY = 1 << 40
Make = Callable[[], list[Any]]


def plain() -> list[Any]:
    return [KVCache()]


def states() -> list[Any]:
    return [KVCache(), RotatingKVCache(max_size=100), ArraysCache(1)]


def more() -> list[Any]:
    return [KVCache(), *states(), ArraysCache(1)]


PARTS = [(plain, plain), (states, states), (more, states), (states, more)]
"""What the layers of two parts of a model hold."""
SIZES = {states: Footprint(8, ((8, 100),), 4, 0), more: Footprint(16, ((8, 100),), 8, 1)}


def model(inputs: mx.array, cache: list[Any]) -> mx.array:
    """Its layers hold the tokens, or the sum of them."""
    keys = inputs.astype(mx.float32)[:, None, :, None]
    for layer in cache:
        if isinstance(layer, ArraysCache):
            held = layer[0]
            layer[0] = keys.sum(2) if held is None else held + keys.sum(2)
        else:
            layer.update_and_fetch(keys, keys)
    return keys[:, 0]


class Slow(Disk):
    """Takes its time."""

    pause = 0.0

    def write(self, block: Block) -> None:
        time.sleep(random.random() * self.pause)
        super().write(block)

    def read(self, block: Block) -> Block:
        time.sleep(random.random() * self.pause)
        return super().read(block)


class Follower(Runner):
    """Does what it hears."""

    def __init__(self, cache: BlockStore, leader: Leader) -> None:
        super().__init__(leader.model, cache._make, None, lambda: cache)

    def hear(self, text: str) -> Any:
        return self.do(read(json.loads(text)))


class Leader(Runner):
    """Tells another runner what it did."""

    def __init__(self, cache: BlockStore, other: BlockStore) -> None:
        super().__init__(model, cache._make, None, lambda: cache)
        self._hall = ThreadPoolExecutor(1)
        cache.through = self.do
        failures, barrier = list[Exception](), threading.Barrier(2)
        for each in (cache, other):
            each.together = partial(_together, failures, barrier)
        self.follower = Follower(other, self)

    def do(self, command: Command) -> Any:
        if uses_files(command):  # they wait for each other
            theirs = self._hall.submit(self.follower.hear, json.dumps(written(command)))
            try:
                return super().do(command)
            finally:
                theirs.exception(20)
        result = super().do(command)
        theirs = self.follower.hear(json.dumps(written(command)))
        if isinstance(command, Take):
            assert theirs == result
        return result


def _together(failures: list[Exception], barrier: threading.Barrier, do: Callable[[], Any]) -> Any:
    """What ``do`` gives, if it fails on neither side."""
    result = None
    try:
        result = do()
    except MlxgenError as error:
        failures.append(error)
    barrier.wait(20)
    failed = list(failures)
    barrier.wait(20)
    failures.clear()
    if failed:
        raise LoadError(f"a rank: {failed[0]}")
    return result


@contextmanager
def pair(path: Path, makes: tuple[Make, Make]) -> Iterator[Leader]:
    sizes = [SIZES[make] for make in makes] if len({*makes}) > 1 else []
    caches = []
    for rank, make in enumerate(makes):
        disk = Slow(path / str(rank), PLENTY, Layout(make))
        part = rank, len(makes)
        made = BlockStore(make, 1 << 20, folder=disk, part=part, sizes=sizes)
        caches.append(made)
    leader = Leader(*caches)
    try:
        yield leader
    finally:
        for cache in caches:
            cache.close(20)


def shape(runner: Runner) -> Any:
    """All that the next commands depend on."""
    assert runner.cache is not None
    cache = runner.cache()
    check_integrity(cache)
    blocks = [
        (
            each.start,
            list(() if each.tokens is None else each.tokens),
            each.has_state,
            each.size,
            each.settled,
        )
        for each in cache._blocks
    ]
    return blocks, cache.nbytes, cache.max_bytes


def restore(leader: Leader, tokens: tuple[Token, ...], room: int | None = None) -> int:
    """Put what every disk has into the prefix caches; returns how much that is of the tokens."""
    assert leader.cache is not None
    assert leader.cache().restore((*tokens, 0), room=room, do=leader.do)
    return leader.cache().match((*tokens, 0))


def run(leader: Leader, tokens: tuple[Token, ...]) -> KV:
    kv = KV(leader)
    kv.take((*tokens, 0))
    if kv.length < len(tokens):
        kv.run(tokens[kv.length :])
    return kv


BASES = [tuple((seed * i + i // 7) % 90 for i in range(3 * BLOCK)) for seed in (3, 5, 11)]


def history(leader: Leader, dice: random.Random) -> None:
    """One of the things that a scheduler does."""
    base = dice.choice(BASES)
    tokens = base[: dice.choice([30, BLOCK, BLOCK + 44, 2 * BLOCK, 2 * BLOCK + 80, len(base)])]
    if dice.random() < 0.3:
        tokens = (*tokens[: dice.randrange(1, len(tokens))], *dice.choice(BASES)[:60])
    room = dice.choice([None, None, 16 * BLOCK, 8 * BLOCK * 4])
    sides = [runner.cache() for runner in (leader, leader.follower) if runner.cache]
    match dice.choice(
        ["run", "run", "run", "restore", "restore", "less", "settle", "drop", "lose", "write"]
    ):
        case "run":
            kv = run(leader, tokens)
            kv.keep(History(tokens), room)
            if dice.random() < 0.6:
                draw = mx.array([1]) + 0
                leader.submit([draw])
                if dice.random() < 0.7:
                    leader.read(draw)
            kv.close()
        case "restore":
            restore(leader, tokens, room)
        case "less":
            to = dice.choice([0, 4, 16, 64]) * BLOCK * 8
            leader.do(Drop(to, for_good=dice.random() < 0.5))
            leader.do(Drop(dice.choice([24, 64, 256]) * BLOCK * 8, for_good=True))
        case "settle":
            leader.settle()
        case "drop":
            leader.do(Free() if dice.random() < 0.5 else Drop(0))
        case "lose":  # on one disk
            files = sorted(dice.choice(sides).folder.path.glob("*.safetensors"))  # type: ignore[union-attr]
            for file in dice.sample(files, len(files) // 3):
                file.unlink(missing_ok=True)
        case "write":
            assert dice.choice(sides).folder.flush(20)  # type: ignore[union-attr]


@pytest.mark.parametrize("makes", PARTS)
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=tries(64), deadline=None)
def test_runners_with_other_disks_keep_the_same(
    makes: tuple[Make, Make], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    path, dice = tmp_path_factory.mktemp("disks"), random.Random(seed)
    for _ in range(2):  # the second time with what is on disk
        with pair(path, makes) as leader:
            for cache in (leader.cache, leader.follower.cache):
                assert cache is not None
                cache().folder.pause = dice.choice([0, 0.004])  # type: ignore[union-attr]
            for _ in range(12):
                history(leader, dice)
                assert shape(leader) == shape(leader.follower)


def test_each_machine_saves_and_loads_its_own_part(tmp_path: Path) -> None:
    tokens, file = BASES[0][:40], tmp_path / "prefix"
    with pair(tmp_path / "one", (states, more)) as leader:
        run(leader, tokens).keep(History(tokens))
        leader.settle()
        assert leader.cache is not None and leader.cache().save(file, tokens) == 40
    with pair(tmp_path / "other", (states, more)) as leader:
        assert leader.cache is not None and leader.cache().load(file) == 40
        assert shape(leader) == shape(leader.follower) and leader.cache().nbytes
        own = tmp_path / "prefix.rank-1-of-2"
        leader.cache().clear()
        own.rename(tmp_path / "elsewhere")
        with pytest.raises(LoadError, match="rank-1-of-2 cannot be read"):
            leader.cache().load(file)
        assert shape(leader) == shape(leader.follower) and not leader.cache().nbytes
        run(leader, tokens[:30]).keep(History(tokens[:30]))
        leader.settle()
        leader.cache().save(file, tokens[:30])
        own.unlink()
        (tmp_path / "elsewhere").rename(own)
        with pytest.raises(LoadError, match="other tokens"):
            leader.cache().load(file)


def test_a_prefix_command_that_fails_on_one_side_leaves_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path, (plain, plain)) as leader:
        assert leader.cache is not None
        run(leader, BASES[0]).keep(History(BASES[0]))
        kv = run(leader, BASES[1])
        with monkeypatch.context() as patch:
            patch.setattr(mx, "async_eval", lambda *given: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                kv.keep(History(BASES[1]))
        assert shape(leader) == shape(leader.follower) and not leader.cache().nbytes
        kv.keep(History(BASES[1]))
        assert shape(leader) == shape(leader.follower) and leader.cache().nbytes
