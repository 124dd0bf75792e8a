"""What the KV caches of a model take, before they are made.

Owns the arithmetic of bytes for sequences alone and together. Must never hold an array.
Invariant: an estimate is never below what mlx-lm's caches and the slots then allocate.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from .layers import PREFILL_STEP, CacheFactory, arrays_in, leaves
from .slot_caches import GROWTH, SLACK

_STEP = 256  # places that mlx-lm's caches grow by


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes for each place of layers that grow, of windows, for states, and of the weights.

    ``windows`` are (bytes a place, width) of the layers with a sliding window.
    """

    growing: int
    windows: tuple[tuple[int, int], ...]
    fixed: int
    weights: int

    @classmethod
    def of(cls, model: nn.Module, make: CacheFactory) -> Footprint:
        """Look at the caches of a sequence of one token; nothing is evaluated."""
        caches = make()
        model(mx.array([[0]]), cache=caches)
        growing, fixed = 0, 0
        windows = []
        for layer in leaves(caches):
            if layer.empty():
                continue
            arrays = list(arrays_in([getattr(layer, "keys", None), layer.__dict__.get("values")]))
            if not arrays:
                fixed += int(layer.nbytes)
                continue
            per_place = sum(int(a.nbytes) // max(1, a.shape[2]) for a in arrays)
            width = getattr(layer, "max_size", None) or getattr(layer, "chunk_size", None)
            if width is None:
                growing += per_place
            else:
                windows.append((per_place, int(width)))
        weights = sum(int(array.nbytes) for array in arrays_in(tree_flatten(model.parameters())))
        return cls(growing, tuple(windows), fixed, weights)

    @property
    def spare(self) -> int:
        """Places that a pass may read in vain, rather than read the weights once more."""
        return self.weights // max(1, self.growing)

    def alone(self, length: int) -> int:
        """Bytes of one sequence of ``length`` tokens in caches of its own, at most.

        mlx-lm's caches grow by whole steps from wherever they were full, and a window that a
        long piece of a prompt went through holds all of that.
        """
        room = length + _STEP
        windows = sum(each * min(room, width + PREFILL_STEP) for each, width in self.windows)
        return self.growing * room + windows + self.fixed

    def together(self, slots: int, length: int) -> int:
        """Bytes of ``slots`` slots, the longest of which has ``length`` tokens."""
        room = -(-(length + 1) // GROWTH) * GROWTH
        windows = sum(each * min(room, width + SLACK) for each, width in self.windows)
        return slots * (self.growing * room + windows + self.fixed)
