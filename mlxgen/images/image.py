"""An image in a prompt: patches, each of which takes the place of a token.

Two images of one size have the same tokens in mlx-lm's prompts. Here each patch has an id of its
own, below zero, that follows from the pixels: so whatever compares tokens (the KV cache with a
history, the prefix cache with a prompt) tells images apart, and knows one again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..tokens import Token

_DIGITS = 15  # hexadecimal ones of the digest, so that every id fits 64 bits


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Image:
    """An image as a model takes it.

    - ``pixels``: [channels, height, width], of the size and the range that the model wants.
    - ``count``: its patches. ``token``: the token that a prompt of mlx-lm has for each of them.
    - ``digest``: of the pixels.
    """

    pixels: npt.NDArray[np.float32]
    count: int
    token: Token
    digest: str

    @classmethod
    def of(cls, pixels: npt.NDArray[np.float32], count: int, token: Token) -> Image:
        """An image with its digest."""
        hashed = hashlib.sha256(repr((pixels.shape, count)).encode())
        hashed.update(np.ascontiguousarray(pixels).data)
        return cls(pixels, count, token, hashed.hexdigest())

    @property
    def patches(self) -> list[Patch]:
        """All of its patches, in order."""
        return [Patch(self, row) for row in range(self.count)]


class Patch(int):
    """The patch ``row`` of an image: a token of a prompt that also knows what it shows."""

    image: Image
    row: int

    def __new__(cls, image: Image, row: int) -> Patch:
        patch = super().__new__(cls, -1 - int(image.digest[:_DIGITS], 16) - row)
        patch.image, patch.row = image, row
        return patch

    def __reduce__(self) -> tuple[Any, ...]:
        return Patch, (self.image, self.row)


def plain(tokens: Iterable[Token]) -> list[Token]:
    """Tokens as mlx-lm's prompts have them, for whatever looks into the vocabulary."""
    return [token.image.token if isinstance(token, Patch) else token for token in tokens]
