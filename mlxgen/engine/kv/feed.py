"""What a pass does with the patches of images among its tokens.

A model is fed what an image shows in the places of its tokens. The vision tower computes that for a
whole image, and a piece of a prompt may end inside it: so it is kept from the pass with the first
patch to that with the last one. Invariant: nothing else is kept, and nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import mlx.core as mx

from ...images import Image, Patch
from .held import Fed
from .layers import LayerCache, Model

Rows: TypeAlias = Sequence[Sequence[Fed]]
Feed: TypeAlias = Callable[[Rows, Model], tuple[Rows, Model]]
"""Gives the tokens of a pass as numbers of 32 bits, and the model that takes these: so nothing
behind it has to know patches."""


class Shown:
    """The ``Feed`` of a model with mlx-lm's ``embed_inputs``.

    Patches are numbers below zero: -1 is the first row of what the images of a pass show.
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Image, mx.array] = WeakKeyDictionary()

    def __call__(self, rows: Rows, model: Model) -> tuple[Rows, Model]:
        patches = [token for row in rows for token in row if isinstance(token, Patch)]
        if not patches:
            return rows, model
        starts: dict[Image, int] = {}
        parts: list[mx.array] = []
        end = 0
        for patch in patches:
            image = patch.image
            if image not in starts:
                starts[image], end = end, end + image.count
                parts.append(self._embedded(image, model))
        for patch in patches:
            if patch.row == patch.image.count - 1:
                self._kept.pop(patch.image, None)
        shown = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        numbered = [
            [-1 - starts[t.image] - t.row if isinstance(t, Patch) else t for t in row]
            for row in rows
        ]
        return numbered, partial(_run, model, shown, patches[0].image.token)

    def forget(self) -> None:
        """Drop everything on the device, as it can no longer be trusted."""
        self._kept.clear()

    def _embedded(self, image: Image, model: Any) -> mx.array:
        """What an image shows: [patches, width]. It is submitted by itself, so that the vision
        tower's arrays for several images are not held together."""
        found = self._kept.get(image)
        if found is None:
            tokens = mx.full((image.count,), image.token, mx.int32)
            found = model.embed_inputs(tokens, pixel_values=[mx.array(image.pixels)])
            mx.async_eval(found)
            self._kept[image] = found
        return found


def unseen(width: int, rows: Rows, model: Model) -> tuple[Rows, Model]:
    """The ``Feed`` of a model that drafts for another one, of which it takes no images, and knows
    the tokens below ``width`` only: it gets token 0 for any other, as it could look up none."""

    def known(token: Fed) -> Fed:
        number = token.image.token if isinstance(token, Patch) else token
        return 0 if isinstance(number, int) and number >= width else number

    return [[known(token) for token in row] for row in rows], model


def _run(
    model: Any, shown: mx.array, token: int, inputs: mx.array, cache: list[LayerCache]
) -> mx.array:
    """A pass of ``inputs`` [n, m], with ``shown`` [rows, width] in the places of its patches."""
    is_patch = inputs < 0
    words = mx.where(is_patch, token, inputs)
    seen = shown[mx.where(is_patch, -1 - inputs, 0)]
    own = model.embed_inputs(words)
    embeddings = mx.where(is_patch[..., None], seen.astype(own.dtype), own)
    logits: mx.array = model(words, cache=cache, input_embeddings=embeddings)
    return logits
