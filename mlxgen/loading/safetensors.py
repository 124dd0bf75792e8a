"""The head of a safetensors file.

The format: the header's length (8 bytes, little-endian), the header as JSON with the place of each
tensor in the data, the data.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO

from ..errors import WeightsError

_LARGEST = 100_000_000  # the limit of the format itself


def read_head(file: BinaryIO, *, advice: str) -> bytes:
    """The length and the header, as they stand at the start of ``file``.

    Raises ``WeightsError``, with the ``advice``, if the file does not hold them. ``OSError``
    is left to the caller.
    """
    size = os.fstat(file.fileno()).st_size
    first = file.read(8)
    if first == b"version ":  # followed by the address of the git-lfs specification
        raise WeightsError(f"{file.name} is a git-lfs pointer, not weights; run `git lfs pull`")
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else size
    if length > min(size, _LARGEST) - 8:
        raise WeightsError(
            f"{file.name} is truncated or not a safetensors file: {size:,} bytes cannot hold its"
            f" header; {advice}"
        )
    return first + file.read(length)
