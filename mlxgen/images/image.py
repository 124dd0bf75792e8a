"""An image in a prompt: patches, each in the place of a token.

``ImageProcessor`` wraps mlx-lm's processor for a model, so that a prompt equals mlx-lm's own. All
threads together decode one image at a time, which bounds the memory.

In mlx-lm's prompts, two images of one size have the same tokens. Here each patch has its own
negative id, which follows from the pixels. So comparisons of tokens (the KV cache with a history,
the prefix cache with a prompt) tell images apart, and recognise an image that comes again.
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

_MOST_PATCHES = 4096  # if the processor does not say
_DIGITS = 15  # hexadecimal digits of the digest in an id, which has to fit 64 bits


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Image:
    """An image as a model takes it.

    - ``pixels``: [channels, height, width], in the size and value range that the model wants.
    - ``count``: how many patches it has. ``token``: the token of each patch in mlx-lm's prompts.
    - ``digest``: SHA-256 of the shape, the count and the pixels.
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
    """Patch ``row`` of an image: a token of a prompt that also knows its image."""

    image: Image
    row: int

    def __new__(cls, image: Image, row: int) -> Patch:
        patch = super().__new__(cls, -1 - int(image.digest[:_DIGITS], 16) - row)
        patch.image, patch.row = image, row
        return patch

    def __reduce__(self) -> tuple[Any, ...]:
        return Patch, (self.image, self.row)


def plain(tokens: Iterable[Token]) -> list[Token]:
    """The tokens as mlx-lm's prompts have them, for code that looks them up in the vocabulary."""
    return [token.image.token if isinstance(token, Patch) else token for token in tokens]


class ImageProcessor:
    """Reads images for one model; ``own``: mlx-lm's processor, ``token``: the token of a patch."""

    def __init__(self, own: Any, token: Token) -> None:
        self._own = own
        self._turn = threading.Lock()
        self._images: WeakSet[Image] = WeakSet()  # those that are still in use
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
        """The size of the pixels of all images that are still in use."""
        with self._turn:
            return sum([image.pixels.nbytes for image in self._images])

    def read(self, source: Address | Source) -> tuple[str, Image]:
        """The text that takes the place of an image's placeholder, with one placeholder for each
        patch, and the image. Raises ``OptionError``, which names its field."""
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
