"""Several short prompts through the model in one pass, each in caches of its own afterwards.

Owns the padded pass and how its caches are taken apart. Must never know whose prompts they are
or which of them go together. Invariant: each resulting cache is the one that the prompt alone
would have made: rows are padded at their ends, where none of their tokens looks.

One pass reads the weights once for all prompts, instead of once for each.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from .alone import Alone
from .layers import (
    PREFILL_STEP,
    CacheFactory,
    LayerCache,
    Model,
    cut,
    fill,
    keys_and_values,
    leaves,
    owned,
    sliceable,
)


def longest_padded(make: CacheFactory) -> int:
    """The most tokens of a prompt that may go with others; 0 if this model does not allow it."""
    return min((_room(layer) for layer in leaves(make())), default=0)


def run_padded(
    model: Model,
    make: CacheFactory,
    tokens: mx.array,
    lengths: Tokens[int],
    stores: Tokens[Alone],
) -> mx.array:
    """Run prompts into empty ``stores``, rows of ``tokens`` [n, most] that are padded at their
    ends; logits [n, most, vocab], nothing is evaluated."""
    caches = make()
    logits = model(tokens, cache=caches)
    for row, (length, store) in enumerate(zip(lengths, stores, strict=True)):
        for leaf, full in zip(leaves(store.caches), leaves(caches), strict=True):
            own = cut(keys_and_values(full), 0, length)
            fill(leaf, tuple(tuple(owned(a[row : row + 1]) for a in run) for run in own), length)
        store.length = length
    return logits


def _room(layer: LayerCache) -> int:
    if type(layer) is RotatingKVCache and layer.keep == 0:
        return min(PREFILL_STEP, int(layer.max_size) - 1)
    return PREFILL_STEP if sliceable(layer) else 0
