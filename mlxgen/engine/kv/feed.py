"""How the patches of images among the tokens of a pass reach the model.

In place of an image's tokens, the model is fed the image's embeddings. The vision tower computes
them for a whole image, and a piece of a prompt may end inside it: so they are kept from the pass
with the first patch to that with the last. Invariant: nothing else is kept or waited for.
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
"""Turns the tokens of a pass into 32-bit numbers, and the model into one that takes them, so that
nothing downstream has to know patches."""


class Shown:
    """The ``Feed`` of a model with mlx-lm's ``embed_inputs``.

    Patches become numbers below zero: -1 is the first row of the embeddings of the pass's images.
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
        """Drop all arrays on the device, which can no longer be trusted."""
        self._kept.clear()

    def _embedded(self, image: Image, model: Any) -> mx.array:
        """The embeddings of an image: [patches, width]. Submitted by itself, so that the vision
        tower's arrays for several images are not held together."""
        found = self._kept.get(image)
        if found is None:
            tokens = mx.full((image.count,), image.token, mx.int32)
            found = model.embed_inputs(tokens, pixel_values=[mx.array(image.pixels)])
            mx.async_eval(found)
            self._kept[image] = found
        return found


def unseen(width: int, rows: Rows, model: Model) -> tuple[Rows, Model]:
    """The ``Feed`` of a drafting model, which is shown no images and knows only tokens below
    ``width``: patches become their image's token, and what it could not look up becomes token 0."""

    def known(token: Fed) -> Fed:
        number = token.image.token if isinstance(token, Patch) else token
        return 0 if isinstance(number, int) and number >= width else number

    return [[known(token) for token in row] for row in rows], model


def _run(
    model: Any, shown: mx.array, token: int, inputs: mx.array, cache: list[LayerCache]
) -> mx.array:
    """Run ``inputs`` [n, m], with rows of ``shown`` [rows, width] in the places of patches."""
    is_patch = inputs < 0
    words = mx.where(is_patch, token, inputs)
    seen = shown[mx.where(is_patch, -1 - inputs, 0)]
    own = model.embed_inputs(words)
    embeddings = mx.where(is_patch[..., None], seen.astype(own.dtype), own)
    logits: mx.array = model(words, cache=cache, input_embeddings=embeddings)
    return logits
