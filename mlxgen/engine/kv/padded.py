"""Several short prompts through the model in one pass, each in caches of its own afterwards.

Owns the padded pass and how its caches are taken apart. Must never know whose prompts they are
or which of them go together. Invariant: a cache that comes out is what the prompt alone would
have made: rows are padded at their ends, where no token of theirs looks.

One pass over the weights serves all prompts, where one for each would read them again and again.
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

LONGEST = 128  # tokens of a prompt beyond which a pass of its own is as fast
WASTE = 1.5  # times the tokens of all prompts that a pass may run, padding included


def longest_padded(make: CacheFactory) -> int:
    """Tokens that a prompt may have to go together with others; 0: none of this model may."""
    return min((_room(layer) for layer in leaves(make())), default=0)


def alike(lengths: Tokens[int]) -> bool:
    """Whether prompts of these lengths are alike enough to go together."""
    return len(lengths) * max(lengths) <= WASTE * sum(lengths)


def run_padded(
    model: Model, make: CacheFactory, runs: Tokens[Tokens[Fed]], stores: Tokens[Alone]
) -> None:
    """Run prompts, one or more tokens each, into empty ``stores``; nothing is evaluated."""
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
