"""mlx-lm's layer caches: their conventions, the trees they form, and what each can take back.

Owns every check of their types. Must never know a sequence's tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import (
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    RotatingKVCache,
)

LayerCache: TypeAlias = Any  # mlx-lm's cache classes are untyped
CacheFactory: TypeAlias = Callable[[], list[LayerCache]]
Run: TypeAlias = tuple[mx.array, ...]
"""One layer's keys and values for some tokens, or the parts of packed ones; if the first tokens are
also kept unpacked, these arrays come last."""

Model: TypeAlias = Callable[..., mx.array]
"""mlx-lm's calling convention: logits [n, m, vocab] of ``inputs`` [n, m], with a ``cache`` list."""

PREFILL_STEP = 2048  # prompt tokens in one forward pass


# ---- trees -------------------------------------------------------------------------------------


def leaves(caches: Iterable[LayerCache]) -> Iterator[LayerCache]:
    """The caches in order, with lists of caches flattened."""
    for layer in caches:
        if isinstance(layer, CacheList):
            yield from leaves(layer.caches)
        else:
            yield layer


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


# ---- keys and values ---------------------------------------------------------------------------


def sliceable(leaf: LayerCache) -> bool:
    """Whether a cache holds its tokens side by side, so any run of them can be cut out."""
    # A subclass of mlx-lm's cache may hold more than that; ours (``Keys``) have ``how``.
    return type(leaf) is KVCache or hasattr(leaf, "how")


def keys_and_values(leaf: LayerCache) -> Run:
    """A cache's keys and values, with time on axis -2.

    Empty for a layer that the model never fills, and for a recurrent state.
    """
    return tuple(arrays_in([getattr(leaf, "keys", None), leaf.__dict__.get("values")]))


def cut(run: Run, start: int, stop: int) -> Run:
    """A layer's keys and values from token ``start`` to ``stop``; shares its buffers."""
    return tuple([array[..., start:stop, :] for array in run])


def bytes_a_place(run: Iterable[mx.array]) -> int:
    """The bytes of one place in arrays [slots, heads, places, width]."""
    return sum(a.itemsize * a.shape[0] * a.shape[1] * a.shape[3] for a in run)


def narrowed(leaf: LayerCache) -> LayerCache:
    """The same state with only the keys that later tokens can see; shares arrays with ``leaf``.

    A prefill in large chunks leaves more keys in a window than the next token sees, and every
    update leaves spare room.
    """
    if type(leaf) is RotatingKVCache and leaf.keys is not None:
        twin = copy.copy(leaf)
        keys, values = leaf._temporal_order(leaf.keys), leaf._temporal_order(leaf.values)
        spare = keys.shape[2] - leaf.max_size
        if spare > 0:
            keys, values = leaf._trim(spare, keys), leaf._trim(spare, values)
        twin.keys, twin.values, twin._idx = keys, values, keys.shape[2]
        return twin
    if type(leaf) is ChunkedKVCache and leaf.keys is not None:
        twin = copy.copy(leaf)
        twin.maybe_trim_front()
        twin.keys, twin.values = twin.keys_and_values()
        return twin
    return leaf


# ---- what can be taken back --------------------------------------------------------------------


def can_trim(leaf: LayerCache, count: int, ahead: int = 0) -> bool:
    """Whether ``count`` tokens can be trimmed from a cache exactly.

    ``ahead``: whether that will be so once it holds this many more tokens.
    """
    if count == 0:
        return True
    if sliceable(leaf):
        return True
    if isinstance(leaf, RotatingKVCache):  # exact until the first key is overwritten
        return bool(leaf.offset + ahead < leaf.max_size)
    if isinstance(leaf, ChunkedKVCache):  # exact until keys are dropped at the front
        return bool(leaf.start_position == 0 and leaf.offset + ahead <= leaf.chunk_size)
    if isinstance(leaf, ConcatenateKVCache):  # its trim does not remove the keys
        return False
    return bool(leaf.is_trimmable())


def can_undo(caches: Iterable[LayerCache], count: int) -> bool:
    """Whether these empty caches could trim any of their tokens exactly after running ``count``."""
    return all(can_trim(leaf, count, count) for leaf in leaves(caches))
