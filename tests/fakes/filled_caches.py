"""Layer caches that hold token ids in the place of keys, so that what they hold can be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from mlxgen.engine.kv.alone import Alone

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


def check(caches: Sequence[Any], ids: Ids) -> None:
    for layer in caches:
        if isinstance(layer, CacheList):
            check(layer.caches, ids)
        elif isinstance(layer, ArraysCache):
            assert layer[0][0, 0].item() == float(hash(ids) % 1009)
        else:
            keys, values = layer.keys_and_values()
            assert layer.offset == len(ids)
            seen = min(len(ids), getattr(layer, "max_size", len(ids)))
            assert keys[0, 0, -seen:, 0].tolist() == list(ids[-seen:])
            assert values[0, 0, -seen:, 0].tolist() == [-token for token in ids[-seen:]]


def holding(make: Make, ids: Ids) -> Alone:
    caches = make()
    fill(caches, ids)
    return Alone(make, caches, len(ids))
