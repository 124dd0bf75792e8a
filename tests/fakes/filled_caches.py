"""Layer caches that hold token ids in the place of keys, so that what they hold can be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from mlxgen.engine.kv.layers import cut, keys_and_values, leaves, sliceable
from mlxgen.engine.kv.slots import Group, Slot
from mlxgen.engine.prefix.store import BlockStore

Make = Callable[[], list[Any]]
Ids = tuple[int, ...]


def state_layers() -> list[Any]:
    return [ArraysCache(1)]


def plain_layers() -> list[Any]:
    return [KVCache(), CacheList(KVCache())]


def mixed_layers() -> list[Any]:
    return [KVCache(), RotatingKVCache(max_size=5), CacheList(ArraysCache(1), KVCache())]


def fill(caches: Sequence[Any], ids: Ids) -> None:
    """Layers that hold the token ids themselves, and a state that is a digest of them."""
    for layer in caches:
        if isinstance(layer, CacheList):
            fill(layer.caches, ids)
        elif isinstance(layer, ArraysCache):
            layer[0] = mx.array([[float(hash(ids) % 1009), 1.0, 2.0, 3.0]])
        else:
            keys = mx.array(ids, mx.float32)[None, None, :, None]
            layer.update_and_fetch(keys, -keys)


def row(make: Make, room: int = 0) -> Slot:
    """The KV of a sequence that holds nothing."""
    return Group(make).add(room)


def filled(make: Make, caches: Sequence[Any], length: int) -> Slot:
    """One that holds what these caches do."""
    held, slot = list(leaves(caches)), row(make)
    columns = [[cut(keys_and_values(leaf), 0, length)] for leaf in held if sliceable(leaf)]
    slot.fill(columns, [leaf for leaf in held if not sliceable(leaf)], length)
    return slot


def holding(make: Make, ids: Ids) -> Slot:
    caches = make()
    fill(caches, ids)
    return filled(make, caches, len(ids))


def taken(store: BlockStore, ids: Sequence[int]) -> Slot | None:
    """What a store gives of these tokens."""
    slot = row(store._make, len(ids) + 1)
    return slot if store.take(ids, slot) else None


def go_on(slot: Slot, ids: Ids) -> None:
    """Run more tokens."""

    def model(inputs: mx.array, cache: list[Any]) -> mx.array:
        fill(cache, ids)
        return inputs

    slot.forward(model, mx.array([ids]))


def check(slot: Slot, ids: Ids) -> None:
    assert slot.length == len(ids)
    (runs,) = slot.parts([0, len(ids)])
    for layer in slot.others():
        if isinstance(layer, ArraysCache):
            assert layer[0][0, 0].item() == float(hash(ids) % 1009)
        else:
            assert layer.offset == len(ids)
            runs = (*runs, layer.keys_and_values())
    for keys, values in filter(None, runs):
        seen = ids[-keys.shape[2] :]
        assert keys.shape[2] in (len(ids), 5, 8)  # but for windows, all of them
        assert keys[0, 0, :, 0].tolist() == list(seen)
        assert values[0, 0, :, 0].tolist() == [-token for token in seen]
