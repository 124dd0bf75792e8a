"""The images that callers pass, decoded by Pillow.

Owns the limits of decoding. Must never know a model. Invariant: nothing is fetched, and only a
``Source`` opens a file; an ``Address``, which a client may have sent, holds the image itself.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import OptionError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MOST_PIXELS = 40_000_000  # of one image

Picture: TypeAlias = npt.NDArray[np.uint8]
"""RGB values [height, width, 3]."""


@dataclass(frozen=True, slots=True)
class Address:
    """A ``data:`` address; ``at`` names the field that it came from."""

    text: str
    at: str


@dataclass(frozen=True, slots=True)
class Source:
    """A path, the bytes of a file, or a Pillow image; ``at`` names the field that it came from."""

    given: Any
    at: str


def decoded(source: Address | Source) -> Picture:
    """The first frame of an image; raises ``OptionError``, which names its field."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise OptionError(
            source.at, "images need Pillow; install it with: pip install 'mlxgen[images]'"
        ) from None
    given = _carried(source) if isinstance(source, Address) else source.given
    if isinstance(given, Image.Image):
        return np.asarray(given.convert("RGB"))
    data = given if isinstance(given, bytes) else _content(given, source.at)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:  # nothing is decoded yet
                raise OptionError(
                    source.at,
                    f"expected an image of at most {MOST_PIXELS} pixels, got {width} by {height}; "
                    "scale it down",
                )
            return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except OptionError:
        raise
    except Exception as error:  # decoders may raise anything
        raise OptionError(
            source.at,
            f"expected an image in one of the formats {', '.join(FORMATS)}, got {len(data)} bytes "
            "that are not, or are damaged",
        ) from error


def _content(given: Any, at: str) -> bytes:
    """The bytes of a file."""
    if not isinstance(given, (str, os.PathLike)):
        raise OptionError(
            at,
            f"expected a path, bytes or a Pillow image, got {type(given).__name__}",
        )
    try:
        return Path(given).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(at, f"{os.fspath(given)!r} cannot be read: {reason}") from error


def _carried(address: Address) -> bytes:
    """The bytes in a data: address."""
    scheme, _, rest = address.text.partition(":")
    kind, comma, data = rest.partition(",")
    if scheme.lower() in ("http", "https"):
        raise OptionError(
            address.at,
            "images are fetched only by a server that was started with --allow-remote-images; "
            "send the image itself, as a data: address with base64",
        )
    if scheme.lower() != "data" or not comma or not kind.lower().endswith(";base64"):
        raise OptionError(
            address.at,
            "expected an address that begins with data:image/png;base64, (or another type), got "
            f"{address.text[:40]!a}",
        )
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise OptionError(address.at, f"the base64 in it is damaged ({error})") from error
