"""How much memory a pass over a piece of a prompt takes besides the KV that it leaves.

Owns the arithmetic of a pass's intermediate arrays: the hidden states of one layer, and attention
scores where MLX has no fused kernel for them. Must never evaluate anything. Invariant: an estimate
is not below what a pass of mlx-lm's models then takes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ...loading.model_config import HEADS, number_of
from .layers import PREFILL_STEP, InRuns, LayerCache, bytes_a_place, keys_and_values, leaves

SMALLEST = 16  # tokens of the smallest piece of a prompt
_SCORES = 2  # copies of attention scores that are held: as computed, and masked or normalised
_MANY = 1024  # tokens of an attention that asks for the kernel of long passes


@dataclass(frozen=True, slots=True)
class Activations:
    """The bytes of a pass's intermediate arrays.

    - ``per_token``: for each token of the pass.
    - ``per_score``: for each of its tokens and each token that it may look at; 0 if the scores
      never leave a fused kernel.
    - ``per_held``: for each token held before: a layer's KV is copied where it grows.
    - ``per_made``: for each token held before, by any sequence of the pass: floats are made of a
      layer's KV if it is quantised.
    """

    per_token: int
    per_score: int
    per_held: int
    per_made: int = 0

    @classmethod
    def of_one(
        cls,
        model: nn.Module,
        caches: Iterable[LayerCache],
        dtype: mx.Dtype,
        *,
        heads: int,
        experts: int,
    ) -> Activations:
        """Measure a model that computes in ``dtype``, with caches that hold a token; it has
        ``heads`` of queries, and a token goes to so many ``experts``."""
        width = max((_width(layer, experts) for layer in getattr(model, "layers", ())), default=0)
        filled = [leaf for leaf in leaves(caches) if not leaf.empty()]
        used = [leaf for leaf in filled if keys_and_values(leaf)]
        states = [leaf.nbytes for leaf in filled if not keys_and_values(leaf)]
        if mx.metal.is_available():  # its kernels hold one state; elsewhere each token has its own
            states = []
        scored = not all(_is_fused(leaf, heads) for leaf in used)
        return cls(
            # Each number is held with what is made of it, and in float32 while that is made.
            per_token=(2 * dtype.size + 4) * width + max(states, default=0),
            per_score=_SCORES * dtype.size * heads if scored else 0,
            per_held=max((bytes_a_place(keys_and_values(leaf)[-1]) for leaf in used), default=0),
            per_made=max(map(_per_made, used), default=0),
        )

    def nbytes(self, tokens: int, held: int) -> int:
        """The bytes of a pass of so many tokens after ``held`` others."""
        scores = self.per_score * (held + tokens)
        return tokens * (self.per_token + scores) + held * (self.per_held + self.per_made)

    def most(self, room: int, held: int) -> int:
        """The most tokens, a power of two, of a pass that takes no more than ``room`` bytes; at
        least the smallest piece."""
        tokens = PREFILL_STEP
        while tokens > SMALLEST and self.nbytes(tokens, held) > room:
            tokens //= 2
        return tokens


@dataclass(frozen=True, slots=True)
class ImageActivations:
    """The bytes that a vision tower's intermediate arrays and the pixels of one image take.

    - ``per_patch``: for each of its patches, as a prompt counts them.
    - ``per_pair``: for each two of them; 0 if attention scores never leave a fused kernel.
    """

    per_patch: int
    per_pair: int

    @classmethod
    def of(cls, vision: Mapping[str, Any], dtype: mx.Dtype) -> ImageActivations:
        """Those of a tower with this configuration that computes in ``dtype``.

        It looks at squares of pixels, several of which are a patch of the prompt.
        """
        width = number_of(vision, ("hidden_size",)) or 1536
        inner = number_of(vision, ("intermediate_size",)) or 4 * width
        heads = number_of(vision, HEADS) or 16
        side = number_of(vision, ("patch_size",)) or 14
        squares = (number_of(vision, ("merge_size", "spatial_merge_size")) or 2) ** 2
        per_square = (2 * dtype.size + 4) * (5 * width + inner)
        per_square += 2 * 3 * side * side * mx.float32.size  # the pixels, before and after
        shape = (1, heads, _MANY, max(1, width // heads))
        scores = 0 if _fuses([mx.zeros(shape, dtype)] * 3, mask=None) else _SCORES * heads
        return cls(squares * per_square, squares * squares * scores * dtype.size)

    def nbytes(self, patches: int) -> int:
        """The bytes of an image of so many patches."""
        return patches * (self.per_patch + self.per_pair * patches)


def _width(layer: Any, experts: int) -> int:
    """How many numbers the matrices of a layer give for one token."""
    width = 0
    for part in layer.modules() if isinstance(layer, nn.Module) else ():
        weight = part.get("weight")
        if isinstance(weight, mx.array) and weight.ndim > 1:
            width += weight.shape[-2] * (experts if weight.ndim > 2 else 1)
    return width


def _per_made(leaf: LayerCache) -> int:
    return bytes_a_place(leaf.keys_and_values()) if isinstance(leaf, InRuns) else 0


def _is_fused(leaf: LayerCache, heads: int) -> bool:
    """Whether MLX computes attention to these keys and values without holding the scores."""
    (arrays,) = [leaf.keys_and_values()] if isinstance(leaf, InRuns) else keys_and_values(leaf)
    if len(arrays) > 2:  # mlx-lm's attention to packed ones holds them
        return False
    keys, values = arrays
    groups = int(keys.shape[1])
    shape = (1, max(1, heads // groups) * groups, _MANY, keys.shape[-1])
    queries = mx.zeros(shape, keys.dtype)
    seen = [mx.zeros((1, groups, _MANY, a.shape[-1]), a.dtype) for a in (keys, values)]
    return _fuses([queries, *seen], mask="causal")


def _fuses(arrays: list[mx.array], mask: str | None) -> bool:
    """Whether MLX has a kernel for an attention of these queries, keys and values: asked by the
    graph that it makes of it."""
    graph = io.StringIO()
    queries, keys, values = arrays
    mx.export_to_dot(
        graph, mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1.0, mask=mask)
    )
    return "ScaledDotProductAttention" in graph.getvalue()
