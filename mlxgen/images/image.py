"""An image in a prompt: patches, each of which takes the place of a token.

``ImageProcessor`` wraps the one that mlx-lm has for a model, so that a prompt is the same as
mlx-lm's own. One image is decoded at a time, whoever asks, so that memory is bounded.

Two images of one size have the same tokens in mlx-lm's prompts. Here each patch has an id of its
own, below zero, that follows from the pixels: so whatever compares tokens (the KV cache with a
history, the prefix cache with a prompt) tells images apart, and knows one again.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from ..errors import OptionError
from ..tokens import Token
from .source import Address, Source, decoded

_MOST_PATCHES = 4096  # of a processor that does not say
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


class ImageProcessor:
    """``own`` is mlx-lm's processor, and ``token`` the one that stands for a patch."""

    def __init__(self, own: Any, token: Token) -> None:
        self._own = own
        self._turn = threading.Lock()
        self._images: WeakSet[Image] = WeakSet()  # that somebody holds
        self.token = token

    @property
    def placeholder(self) -> str:
        """What a chat template writes for an image."""
        return str(self._own.image_token)

    @property
    def most_patches(self) -> int:
        """The most patches of one image."""
        return int(getattr(self._own, "max_num_image_tokens", _MOST_PATCHES))

    @property
    def nbytes(self) -> int:
        """The bytes of the pixels of all images that somebody holds."""
        with self._turn:
            return sum([image.pixels.nbytes for image in self._images])

    def read(self, source: Address | Source) -> tuple[str, Image]:
        """An image, and the text that takes the place of its placeholder, with one placeholder for
        each patch. Raises ``OptionError``, which names its field."""
        with self._turn:
            picture = decoded(source)
            try:
                text, (pixels,) = self._own(self.placeholder, images=[picture])
            except Exception as error:  # another library's
                height, width, _ = picture.shape
                raise OptionError(
                    source.at,
                    f"the model's processor refuses an image of {width} by {height} pixels: "
                    f"{error}",
                ) from error
            values = np.asarray(pixels, dtype=np.float32)
            image = Image.of(values, text.count(self.placeholder), self.token)
            self._images.add(image)
        return text, image
