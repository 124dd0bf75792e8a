"""mlx-lm's quantised KV cache, with as many bits for every head dimension."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import cache

from ...errors import OptionError


class QuantizedKVCache(cache.QuantizedKVCache):  # type: ignore[misc]
    """It begins with no places, of the width that ``mx.quantize`` gives.

    mlx-lm makes the first places ``dim // (32 // bits)`` words wide, but with 3, 5 and 6 bits a
    number may lie across two words, so these need ``dim * bits / 32``.
    """

    keys: Any
    values: Any

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        if self.keys is None:
            self.keys, self.values = self._no_places(keys), self._no_places(values)
        return super().update_and_fetch(keys, values)

    def _no_places(self, array: mx.array) -> tuple[mx.array, ...]:
        width, size = array.shape[-1], self.group_size
        if width % size:
            raise OptionError(
                "kv_group_size",
                f"expected a divisor of the model's head dimension {width}, got {size}",
            )
        parts = mx.quantize(array[..., :1, :], group_size=size, bits=self.bits)
        return tuple(part[..., :0, :] for part in parts)
