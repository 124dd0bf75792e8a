"""mlx-lm's layer caches: their conventions, the trees they form, and what each can take back.

Owns every check of their types. Must never know a sequence's tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

LayerCache: TypeAlias = Any  # mlx-lm's cache classes are untyped
CacheFactory: TypeAlias = Callable[[], list[LayerCache]]

PREFILL_STEP = 2048  # prompt tokens in one forward pass

_SLICEABLE = (KVCache, QuantizedKVCache)


class Model(Protocol):
    """What the engine needs of a model: mlx-lm's calling convention."""

    def __call__(self, inputs: mx.array, cache: list[LayerCache]) -> mx.array: ...


# ---- trees -------------------------------------------------------------------------------------


def leaves(caches: Iterable[LayerCache]) -> Iterator[LayerCache]:
    """The caches in order, with lists of caches flattened."""
    for layer in caches:
        if isinstance(layer, CacheList):
            yield from leaves(layer.caches)
        else:
            yield layer


def refilled(caches: Iterable[LayerCache], taken: Iterator[LayerCache]) -> list[LayerCache]:
    """The same tree of caches, with the ``taken`` ones in place of its ``leaves``."""
    return [
        CacheList(*refilled(layer.caches, taken)) if isinstance(layer, CacheList) else next(taken)
        for layer in caches
    ]


def arrays_in(value: Any) -> Iterator[mx.array]:
    """Every array in a cache, or in a tree of them."""
    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from arrays_in(item)
    elif hasattr(value, "__dict__"):
        yield from arrays_in(list(vars(value).values()))


def copied(value: Any, array: Callable[[mx.array], mx.array] = mx.array) -> Any:
    """A copy of a cache, or of a tree of them, with ``array(a)`` in place of each array ``a``.

    By default the buffers are shared: every array gets a handle of its own, so an in-place
    update of one copy rebinds only that copy's handle.
    """
    if isinstance(value, mx.array):
        return array(value)
    if isinstance(value, (list, tuple)):
        return type(value)(copied(item, array) for item in value)
    if hasattr(value, "__dict__"):
        twin = copy.copy(value)
        twin.__dict__.update({k: copied(item, array) for k, item in value.__dict__.items()})
        return twin
    return value


def owned(array: mx.array) -> mx.array:
    """A copy in a buffer of its own; not evaluated.

    ``mx.contiguous`` would share the buffer of an array that is contiguous already, such as the
    first tokens of a cache with a single head, and keep the whole buffer alive.
    """
    if array.ndim == 0:
        return owned(array[None]).squeeze(0)
    return mx.concatenate([array, array[:0]], axis=0)


# ---- what can be taken back --------------------------------------------------------------------


def can_trim(layer: LayerCache, count: int, ahead: int = 0) -> bool:
    """Whether ``count`` tokens can be trimmed from a layer, exactly.

    With ``ahead``: whether that will be so once the layer holds ``ahead`` tokens more.
    """
    if count == 0:
        return True
    if isinstance(layer, CacheList):
        return all(can_trim(inner, count, ahead) for inner in layer.caches)
    if isinstance(layer, RotatingKVCache):  # exact until the first key is overwritten
        return bool(layer.offset + ahead < layer.max_size)
    if isinstance(layer, ChunkedKVCache):  # exact until keys are dropped at the front
        return bool(layer.start_position == 0 and layer.offset + ahead <= layer.chunk_size)
    if isinstance(layer, ConcatenateKVCache):  # its trim does not remove the keys
        return False
    return bool(layer.is_trimmable())


def always_trimmable(layer: LayerCache) -> bool:
    """Whether a layer of this type can be trimmed at any time, by any number of tokens."""
    if isinstance(layer, CacheList):
        return all(always_trimmable(inner) for inner in layer.caches)
    return isinstance(layer, _SLICEABLE)


def cheap_to_keep(layer: LayerCache) -> bool:
    """Whether keeping an old state is cheap, as states are replaced, not updated in place."""
    if isinstance(layer, CacheList):
        return all(cheap_to_keep(inner) or always_trimmable(inner) for inner in layer.caches)
    return isinstance(layer, (ArraysCache, ConcatenateKVCache))


def sliceable(leaf: LayerCache) -> bool:
    """Whether a cache holds its tokens side by side, so any run of them can be cut out."""
    return type(leaf) in _SLICEABLE  # a subclass may hold more than that
