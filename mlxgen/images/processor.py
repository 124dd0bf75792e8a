"""A model's image processor: from a decoded image to the pixels and the patches that it takes.

It wraps the one that mlx-lm has for the model, so that a prompt is the same as mlx-lm's own.
Invariant: one image is decoded at a time, whoever asks, so that memory is bounded.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakSet

import numpy as np

from ..errors import OptionError
from ..tokens import Token
from .image import Image
from .source import Address, Source, decoded

_MOST_PATCHES = 4096  # of a processor that does not say


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
