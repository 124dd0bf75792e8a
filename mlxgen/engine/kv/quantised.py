"""KV caches of one sequence that hold keys and values in fewer bits.

Owns which tokens are quantised, how, and in which form attention gets them. Must never know
sequences side by side: they keep theirs in the same ``Places``. Invariant: what is held of a token
depends on its position and its own keys and values only, so a prefix can be cut anywhere, taken
back, copied and run again.

mlx-lm's attention can work on packed keys and values: it does so for a cache that has ``bits``.
Then it reads fewer bytes, once for each query head and token; but it holds the scores, and it
lacks what some models need. So it gets packed ones for single tokens, if the model can do with
that, and otherwise floats that are made of them for one layer at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, KVCache, create_attention_mask

from ...errors import OptionError
from .layers import CacheFactory, LayerCache, Model, leaves
from .places import Keys, Packing, Pair, Places

_GROUPS = (64, 32)  # the default is the first one that fits


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How a model's keys and values are quantised: from position ``start`` on, and not before.

    ``packed``: whether its attention can work on packed ones.
    """

    bits: int
    group_size: int
    start: int = 0
    packed: bool = field(default=False, repr=False)

    @classmethod
    def of(
        cls,
        model: Model,
        make: CacheFactory,
        bits: int,
        group_size: int | None,
        start: int,
        *,
        name: str,
    ) -> Quantisation:
        """Find what a model can do, from the graph of a pass; nothing is evaluated.

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
            found = cls(bits, size, start, packed)
            try:
                model(mx.array([[0]]), cache=found.applied(make()))
                return found
            except Exception as reason:  # whatever a model does with caches that it does not know
                error = reason
        raise OptionError(
            "kv_bits", f"{name} cannot run with a quantised KV cache ({error}); leave it out"
        ) from error

    def applied(self, caches: list[LayerCache]) -> list[LayerCache]:
        """Empty caches with quantised ones in place of those that can be."""
        return [self._one(layer) for layer in caches]

    def _one(self, layer: LayerCache) -> LayerCache:
        if type(layer) is CacheList:
            return CacheList(*map(self._one, layer.caches))
        return QuantisedKeys(self) if type(layer) is KVCache else layer

    def places(self) -> Places:
        """An empty layer of this kind."""
        return Places(Packing(self.bits, self.group_size), self.start)

    def seen(self, cache: Any, places: Places, slots: slice, end: int, count: int) -> Pair:
        """What a pass of ``count`` tokens gets, through a cache of one or many sequences."""
        if self.packed and count == 1:
            cache.bits, cache.group_size = self.bits, self.group_size
            return places.seen_packed(slots, end)
        vars(cache).pop("bits", None)
        return places.seen(slots, end)


class QuantisedKeys:
    """An attention layer's cache of one sequence, in the convention of mlx-lm's models."""

    keys = Keys()

    def __init__(self, how: Quantisation) -> None:
        self.how = how
        self.places = how.places()
        self.offset = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Pair:
        """Store the keys and values of a pass; return all that are held."""
        self.places.append(self.offset, keys, values)
        self.offset += keys.shape[2]
        return self.how.seen(self, self.places, slice(None), self.offset, keys.shape[2])

    def keys_and_values(self) -> Pair:
        """All that are held, as floats."""
        return self.places.seen(slice(None), self.offset)

    def make_mask(self, *args: Any, **kwargs: Any) -> Any:
        return create_attention_mask(*args, offset=self.offset, **kwargs)

    @property
    def state(self) -> list[mx.array]:
        return self.places.arrays

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.places.arrays)

    def empty(self) -> bool:
        return self.places.empty

    def is_trimmable(self) -> bool:
        return True

    def trim(self, count: int) -> int:
        self.offset -= count
        return count
