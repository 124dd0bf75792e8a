"""How much memory a model needs: for its KV caches, for a pass, and for images.

Owns the arithmetic of these bytes, which follow from one pass of one token. Must never hold or
evaluate an array. Invariant: an estimate is never below what mlx-lm's caches and the slots
allocate, or what a pass of mlx-lm's models takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ...loading.model_config import EXPERTS, HEADS, number_of
from .layers import PREFILL_STEP, CacheFactory, Run, arrays_in, bytes_a_place, keys_and_values
from .slot_caches import GROWTH, PACKED, SLACK, Keys
from .slots import Group
from .states import Foreign

SMALLEST = 16  # tokens of the smallest piece of a prompt
_SCORES = 2  # copies of the attention scores held at once: as computed, and masked or normalised
_FUSED = (64, 80, 128)  # head dimensions for which MLX's GPU kernels hold no scores (0.32)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes of a model's caches and weights.

    - ``growing``: of one place (a token) in all layers that grow.
    - ``early``: of each of the first ``start`` tokens besides, if they are also kept unquantised.
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
    def of(cls, model: nn.Module, group: Group) -> Footprint:
        """Measure a group of one slot that holds one token; nothing is evaluated."""
        growing = early = fixed = start = 0
        windows = []
        for layer in group.layers:
            run = _run_of(layer)
            each = bytes_a_place(run[:PACKED])
            if not run:
                fixed += sum(array.nbytes for array in layer.arrays)
            elif layer.window is not None:
                windows.append((each, int(layer.window)))
            else:
                growing, early = growing + each, early + bytes_a_place(run[PACKED:])
            if isinstance(layer, Keys) and layer.how is not None:
                start = layer.how.start
        weights = sum(int(array.nbytes) for array in arrays_in(tree_flatten(model.parameters())))
        return cls(growing, tuple(windows), fixed, weights, early, start)

    @property
    def spare(self) -> int:
        """How many unused places a pass may read for the cost of reading the weights once."""
        return self.weights // max(1, self.growing)

    def snapshot_at(self, length: int = 1 << 40) -> int:
        """The bytes of a snapshot (windows and recurrent states) after ``length`` tokens; by
        default, of full windows."""
        return sum(each * min(length, width) for each, width in self.windows) + self.fixed

    def alone(self, length: int) -> int:
        """The most bytes of one sequence of ``length`` tokens in caches of its own.

        mlx-lm's caches grow by whole steps from the length at which they were full, and a window
        holds all of a long prompt chunk that has just passed through it.
        """
        room = length + GROWTH
        windows = sum(each * min(room, width + PREFILL_STEP) for each, width in self.windows)
        return self._growing(room) + windows + self.fixed

    def together(self, slots: int, length: int) -> int:
        """The bytes of ``slots`` slots, the longest of which has ``length`` tokens."""
        room = -(-(length + 1) // GROWTH) * GROWTH
        windows = sum(each * min(room, width + SLACK) for each, width in self.windows)
        return slots * (self._growing(room) + windows + self.fixed)

    def _growing(self, room: int) -> int:
        return self.growing * room + self.early * (self.start + 1)


@dataclass(frozen=True, slots=True)
class Activations:
    """The bytes of a pass's intermediate arrays.

    - ``per_token``: for each token of the pass.
    - ``per_score``: for each of its tokens and each token that it may attend to; 0 if the scores
      never leave a kernel.
    - ``per_held``: for each token held before: a layer's KV is copied when it grows, and
      dequantised if it is quantised, while that of the layer before may not be freed yet.
    """

    per_token: int
    per_score: int
    per_held: int

    @classmethod
    def of(
        cls,
        model: nn.Module,
        group: Group,
        dtype: mx.Dtype,
        config: Mapping[str, Any],
    ) -> Activations:
        """Measure a model that computes in ``dtype``; the group is as for ``Footprint.of``."""
        heads, experts = (number_of(config, names) or 1 for names in (HEADS, EXPERTS))
        width = max((_width(layer, experts) for layer in getattr(model, "layers", ())), default=0)
        states = kept = made = 0
        fused = True
        for layer in group.layers:
            run = floats = _run_of(layer)
            if not run:
                states = max(states, sum(array.nbytes for array in layer.arrays))
            elif isinstance(layer, Keys) and layer.how is not None:
                floats = layer.how.floats(layer.run(slice(None), 0, 1))
                made = max(made, bytes_a_place(floats))
            kept = max(kept, bytes_a_place(run))
            widths = {array.shape[-1] for array in floats}  # with several, no fused kernel applies
            fused = fused and len(widths) <= 1 and all(map(_holds_no_scores, widths))
        if mx.metal.is_available():  # Metal kernels hold one state; elsewhere each token has one
            states = 0
        return cls(
            # Each number is held with its result, and in float32 while that is computed.
            per_token=(2 * dtype.size + 4) * width + states,
            per_score=0 if fused else _SCORES * dtype.size * heads,
            per_held=kept + 2 * made,
        )

    def nbytes(self, tokens: int, held: int) -> int:
        """The bytes of a pass of ``tokens`` tokens after ``held`` others."""
        return tokens * (self.per_token + self.per_score * (held + tokens)) + held * self.per_held

    def most(self, room: int, held: int) -> int:
        """The most tokens, a power of two, whose pass takes at most ``room`` bytes; never fewer
        than the smallest piece."""
        tokens = PREFILL_STEP
        while tokens > SMALLEST and self.nbytes(tokens, held) > room:
            tokens //= 2
        return tokens


def image_bytes(vision: Mapping[str, Any], dtype: mx.Dtype, patches: int) -> int:
    """The bytes that the pixels and the vision tower's intermediate arrays take for an image of
    ``patches`` patches, in a tower of this configuration that computes in ``dtype``.

    The tower looks at squares of pixels, several of which make one patch of the prompt.
    """
    width = number_of(vision, ("hidden_size",)) or 1536
    inner = number_of(vision, ("intermediate_size",)) or 4 * width
    heads = number_of(vision, HEADS) or 16
    side = number_of(vision, ("patch_size",)) or 14
    squares = patches * (number_of(vision, ("merge_size", "spatial_merge_size")) or 2) ** 2
    per_square = (2 * dtype.size + 4) * (5 * width + inner)
    per_square += 2 * 3 * side * side * mx.float32.size  # the pixels, before and after
    if not _holds_no_scores(width // heads):
        per_square += squares * _SCORES * heads * dtype.size
    return squares * per_square


def _width(layer: Any, experts: int) -> int:
    """The summed output widths of a layer's weight matrices, for one token."""
    width = 0
    for part in layer.modules() if isinstance(layer, nn.Module) else ():
        weight = part.get("weight")
        if isinstance(weight, mx.array) and weight.ndim > 1:
            width += weight.shape[-2] * (experts if weight.ndim > 2 else 1)
    return width


def _run_of(layer: Any) -> Run:
    """The keys and values of a layer, if it has any."""
    if isinstance(layer, Foreign):
        return keys_and_values(layer.leaf)
    return tuple(layer.arrays) if isinstance(layer, Keys) else ()


def _holds_no_scores(width: int) -> bool:
    return mx.default_device() != mx.Device(mx.cpu) and width in _FUSED


@dataclass(frozen=True, slots=True)
class Measures:
    """The width of a model's logits, and the bytes of its KV caches and passes. ``own``: it runs
    only with mlx-lm's own caches."""

    vocab_size: int
    footprint: Footprint
    activations: Activations
    own: bool = False

    @classmethod
    def of(cls, model: nn.Module, make: CacheFactory, config: Mapping[str, Any]) -> Measures:
        """Measure a pass of one token; nothing is evaluated."""
        group, token, own = Group(make), mx.array([[0]]), False
        try:
            logits = group.add(1).forward(model, token)
        except Exception:  # some models use more of a cache than all caches have
            group, own = Group(make, own=True), True
            logits = group.add(1).forward(model, token)
        activations = Activations.of(model, group, logits.dtype, config)
        return cls(int(logits.shape[-1]), Footprint.of(model, group), activations, own)
