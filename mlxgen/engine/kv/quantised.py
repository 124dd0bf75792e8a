"""KV caches of one sequence that hold keys and values in fewer bits, and which models can do with
them.

Invariant: what is held of a token depends on its position and its own keys and values only, so a
prefix can be cut anywhere, taken back, copied and run again.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, KVCache, create_attention_mask

from ...errors import OptionError
from .layers import CacheFactory, LayerCache, Model, Run, leaves
from .slot_caches import PACKED, Keys, Pair, Pass, Quantisation

_GROUPS = (64, 32)  # the default is the first one that fits


class QuantisedKeys(Keys):
    """Quantised keys and values of one sequence on its own, as a cache of mlx-lm's models."""

    how: Quantisation
    offset: int

    def __init__(self, how: Quantisation) -> None:
        super().__init__(how=how)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Pair:
        """Store the keys and values of a pass; return all that are held."""
        self.step = Pass(0, [self.offset], [True], held=1, count=keys.shape[2], rooms=1)
        self.step.reach = self.step.end
        if self.step.end > self.places:
            self.resize(1, self.step.end)
        seen = super().update_and_fetch(keys, values)
        self.step = None
        return seen

    def make_mask(self, *args: Any, **kwargs: Any) -> Any:
        return create_attention_mask(*args, offset=self.offset, **kwargs)

    def held(self) -> Run:
        """What is kept of all that is held; shares the buffers."""
        return self.run(slice(None), 0, self.offset) if self.arrays else ()

    def keys_and_values(self) -> Pair:
        """All that are held, as floats."""
        return self.how.floats(self.held())

    def fill(self, run: Run) -> None:
        """Hold what ``held`` gave, in arrays that are its own."""
        self.arrays = list(run)
        for i, array in enumerate(run[PACKED:], PACKED):
            more = max(0, self.how.start + 1 - array.shape[2])
            self.arrays[i] = mx.pad(array, [(0, 0), (0, 0), (0, more), (0, 0)])

    @property
    def state(self) -> list[mx.array]:
        return self.arrays

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def is_trimmable(self) -> bool:
        return True

    def trim(self, count: int) -> int:
        self.offset -= count
        return count


def quantisation(
    model: Model,
    make: CacheFactory,
    bits: int,
    group_size: int | None,
    start: int,
    *,
    name: str,
) -> Quantisation:
    """How a model's KV can be quantised, from the graph of a pass; nothing is evaluated.

    Raises ``OptionError`` if nothing of it can be quantised, or not so.
    """
    caches = make()
    model(mx.array([[0]]), cache=caches)
    plain = [leaf for leaf in leaves(caches) if type(leaf) is KVCache and not leaf.empty()]
    widths = {array.shape[-1] for leaf in plain for array in (leaf.keys, leaf.values)}
    if not widths:
        raise OptionError(
            "kv_bits",
            f"{name} has no layer to quantise: windows and recurrent states stay as they are;"
            " leave it out",
        )
    fitting = [size for size in _GROUPS if not any(width % size for width in widths)]
    size = group_size or (fitting or _GROUPS)[0]
    if any(width % size for width in widths):
        dimensions = " and ".join(map(str, sorted(widths)))
        raise OptionError(
            "kv_group_size",
            f"expected a divisor of the head dimension of {name}, {dimensions}, got {size}",
        )
    error: Exception | None = None
    for packed in (True, False)[bool(start) :]:
        found = Quantisation(bits, size, start, packed)
        try:
            model(mx.array([[0]]), cache=quantised(make(), found))
            return found
        except Exception as reason:  # whatever a model does with caches that it does not know
            error = reason
    raise OptionError(
        "kv_bits", f"{name} cannot run with a quantised KV cache ({error}); leave it out"
    ) from error


def quantised(caches: list[LayerCache], how: Quantisation) -> list[LayerCache]:
    """Empty caches with quantised ones in place of those that can be."""

    def one(layer: Any) -> LayerCache:
        if type(layer) is CacheList:
            return CacheList(*map(one, layer.caches))
        return QuantisedKeys(how) if type(layer) is KVCache else layer

    return [one(layer) for layer in caches]
