"""Several short prompts through the model in one pass, each in caches of its own afterwards.

Owns the padded pass and how its caches are taken apart. Must never know whose prompts they are
or which of them go together. Invariant: each resulting cache is the one that the prompt alone
would have made: rows are padded at their ends, where none of their tokens looks.

One pass reads the weights once for all prompts, instead of once for each.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from .alone import Alone
from .held import Fed, gathered
from .layers import CacheFactory, LayerCache, Model, leaves, refilled
from .slot_caches import first_tokens

LONGEST = 128  # tokens; for longer prompts a pass of their own is as fast
WASTE = 1.5  # a pass may run that many times the tokens of all prompts, including padding


def longest_padded(make: CacheFactory) -> int:
    """The most tokens of a prompt that may go with others; 0 if this model does not allow it."""
    return min((_room(layer) for layer in leaves(make())), default=0)


def alike(lengths: Tokens[int]) -> bool:
    """Whether prompts of these lengths are alike enough to go together."""
    return len(lengths) * max(lengths) <= WASTE * sum(lengths)


def run_padded(
    model: Model, make: CacheFactory, runs: Tokens[Tokens[Fed]], stores: Tokens[Alone]
) -> None:
    """Run prompts of at least one token each into empty ``stores``; nothing is evaluated."""
    longest = max(map(len, runs))
    caches = make()
    model(mx.stack([gathered([*run, *[0] * (longest - len(run))]) for run in runs]), cache=caches)
    layers = list(leaves(caches))
    for row, (run, store) in enumerate(zip(runs, stores, strict=True)):
        taken = (_row_of(layer, row, len(run)) for layer in layers)
        store.caches, store.length = refilled(caches, taken), len(run)


def _room(layer: LayerCache) -> int:
    if type(layer) is RotatingKVCache and layer.keep == 0:
        return min(LONGEST, int(layer.max_size) - 1)
    return LONGEST if type(layer) is KVCache else 0


def _row_of(layer: Any, row: int, length: int) -> LayerCache:
    own = first_tokens(layer.keys, layer.values, row, length)
    if not isinstance(layer, RotatingKVCache):
        return own
    window = RotatingKVCache(layer.max_size)  # not full yet, so in order
    window.keys, window.values, window.offset, window._idx = own.keys, own.values, length, length
    return window
