"""Files of weights: their tensors, and what tells one from another.

The format: the header's length (8 bytes, little-endian), the header as JSON with the place of each
tensor in the data, the data. Must never read a file as a whole: models have hundreds of gigabytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..errors import WeightsError

_LARGEST = 100_000_000  # the limit of a header, by the format itself
_PROBES = 64  # places in the data of each file of weights
_WIDTH = 256  # bytes that are read at each place
_READ_WHOLE = ("config.json", "adapter_config.json", "model.safetensors.index.json", "*.py")

BROKEN = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What unexpected JSON raises where it is read."""


class Tensor(NamedTuple):
    """What a header says of a tensor."""

    shape: tuple[int, ...]
    nbytes: int


def tensors_in(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by their names; raises ``WeightsError`` unless it is complete."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = _read_head(file)
        header = json.loads(head[8:])
        header.pop("__metadata__", None)
        places = {name: tuple(map(int, each["data_offsets"])) for name, each in header.items()}
        end = len(head) + max((last for first, last in places.values() if first >= 0), default=0)
        found = {
            name: Tensor(tuple(header[name]["shape"]), last - first)
            for name, (first, last) in places.items()
        }
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}") from error
    except BROKEN as error:
        raise WeightsError(
            f"{path} has a broken header ({type(error).__name__}); download it again"
        ) from error
    if end > size:
        raise WeightsError(
            f"{path} is truncated: expected {end:,} bytes, got {size:,}; download it again"
        )
    return found


def fingerprint(folder: Path) -> dict[str, str]:
    """A digest of each file that decides what a model computes, by name, wherever its folder lies
    and whenever it was written.

    The configuration, the index and the model's own code count as they are; weights with their
    size, their header and samples of their data, which tell a finetuned model from its base. What
    only says how text becomes tokens does not count. Raises ``WeightsError`` for broken weights.
    """
    found = {}
    for pattern in _READ_WHOLE:
        for file in sorted(folder.glob(pattern)):
            found[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            digest = hashlib.sha256(_read_head(opened))
            start, end = opened.tell(), file.stat().st_size
            for probe in range(_PROBES):
                opened.seek(start + (end - start) * probe // _PROBES)
                digest.update(opened.read(_WIDTH))
        found[file.name] = f"{end} bytes, {digest.hexdigest()[:16]}"
    return found


def _read_head(file: BinaryIO) -> bytes:
    """The length and the header, as they stand at the start of ``file``. ``OSError`` is left to the
    caller."""
    size = os.fstat(file.fileno()).st_size
    first = file.read(8)
    if first == b"version ":  # followed by the address of the git-lfs specification
        raise WeightsError(f"{file.name} is a git-lfs pointer, not weights; run `git lfs pull`")
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else size
    if length > min(size, _LARGEST) - 8:
        raise WeightsError(
            f"{file.name} is truncated or not a safetensors file: {size:,} bytes cannot hold its"
            " header; download it again"
        )
    return first + file.read(length)
