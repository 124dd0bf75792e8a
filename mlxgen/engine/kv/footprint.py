"""How much memory the KV caches of a model will need.

Owns the arithmetic of bytes for sequences alone and together. Must never hold an array.
Invariant: an estimate is never below what mlx-lm's caches and the slots then allocate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import mlx.nn as nn
from mlx.utils import tree_flatten

from .layers import PREFILL_STEP, LayerCache, arrays_in, bytes_a_place, keys_and_values, leaves
from .places import GROWTH, SLACK
from .quantised import QuantisedKeys

_STEP = 256  # places that mlx-lm's caches grow by


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes of a model's caches and weights.

    - ``growing``: of one place (a token) in all layers that grow.
    - ``early``: of each of the first ``start`` tokens besides, if they are kept in another way.
    - ``windows``: (bytes of one place, width) of each layer with a sliding window.
    - ``fixed``: of all recurrent states.
    - ``weights``: of all weights.
    """

    growing: int
    windows: tuple[tuple[int, int], ...]
    fixed: int
    weights: int
    early: int = 0
    start: int = 0

    @classmethod
    def of(cls, model: nn.Module, caches: Iterable[LayerCache]) -> Footprint:
        """Measure caches that hold one token; nothing is evaluated."""
        growing, early, fixed = 0, 0, 0
        windows, starts = [], [0]
        for layer in leaves(caches):
            if layer.empty():
                continue
            runs = list(map(bytes_a_place, keys_and_values(layer)))
            if not runs:
                fixed += int(layer.nbytes)
                continue
            width = getattr(layer, "max_size", None) or getattr(layer, "chunk_size", None)
            if width is None:
                growing += runs[-1]
                early += sum(runs[:-1])
                starts.append(layer.how.start if isinstance(layer, QuantisedKeys) else 0)
            else:
                windows.append((runs[-1], int(width)))
        weights = sum(int(array.nbytes) for array in arrays_in(tree_flatten(model.parameters())))
        return cls(growing, tuple(windows), fixed, weights, early, max(starts))

    @property
    def spare(self) -> int:
        """How many unused places a pass may read at the cost of reading the weights once."""
        return self.weights // max(1, self.growing)

    @property
    def snapshot(self) -> int:
        """The bytes of what a sequence cannot go back in: full windows, and recurrent states."""
        return sum(each * width for each, width in self.windows) + self.fixed

    def snapshot_at(self, length: int) -> int:
        """The bytes of windows and recurrent states after ``length`` tokens."""
        return sum(each * min(length, width) for each, width in self.windows) + self.fixed

    def alone(self, length: int) -> int:
        """The most bytes of one sequence of ``length`` tokens in caches of its own.

        mlx-lm's caches grow by whole steps from whatever length they were full at, and a window
        holds all of a long prompt chunk that has just passed through it.
        """
        room = length + _STEP
        windows = sum(each * min(room, width + PREFILL_STEP) for each, width in self.windows)
        return self._growing(room) + windows + self.fixed

    def together(self, slots: int, length: int) -> int:
        """The bytes of ``slots`` slots, the longest of which has ``length`` tokens."""
        room = -(-(length + 1) // GROWTH) * GROWTH
        windows = sum(each * min(room, width + SLACK) for each, width in self.windows)
        return slots * (self._growing(room) + windows + self.fixed)

    def _growing(self, room: int) -> int:
        return self.growing * room + self.early * min(room, self.start + 1)
