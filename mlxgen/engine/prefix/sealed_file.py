"""A safetensors file in which every change is detected.

Owns the bytes: a header with metadata and the place of each tensor, the tensors, and a checksum
over all of it. Must never know what the tensors are for. Invariants: a file is written whole or not
at all; what is read is what was written, to the bit.

    8 bytes    the length of the header, little-endian
    header     JSON. Its metadata begins with ``checksum``, SHA-256 of the whole file with zeros in
               place of the checksum
    data       the tensors, one after the other
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import mlx.core as mx
import numpy as np

from ...errors import LoadError
from ...loading.safetensors import read_head

PART = ".part"  # ends the names of files that are not written whole yet
_ADVICE = "save the prefix again"
_START = b'{"__metadata__":{"checksum":"'
_ZEROS = "0" * 64
_DIGITS = slice(8 + len(_START), 8 + len(_START) + len(_ZEROS))
_TYPES = {
    "BOOL": mx.bool_,
    "U8": mx.uint8,
    "I8": mx.int8,
    "U16": mx.uint16,
    "I16": mx.int16,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "U32": mx.uint32,
    "I32": mx.int32,
    "F32": mx.float32,
    "U64": mx.uint64,
    "I64": mx.int64,
    "C64": mx.complex64,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_IN_NUMPY = {  # with the bits of the one type that numpy lacks
    dtype: np.dtype("uint16" if dtype == mx.bfloat16 else str(dtype).rpartition(".")[2])
    for dtype in _NAMES
}


def write(
    path: Path,
    metadata: Mapping[str, str],
    arrays: Mapping[str, mx.array],
    *,
    mode: int = 0o666,
    modified: int | None = None,
) -> int:
    """Write the whole file or, if that raises ``OSError``, nothing; returns its size.

    ``modified``: the time of its modification in nanoseconds, if that is not now.
    """
    mx.eval(list(arrays.values()))
    places, end = {}, 0
    for name, array in arrays.items():
        places[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    data = [memoryview(array) for array in arrays.values()]  # type: ignore[arg-type]
    pieces = [piece if piece.c_contiguous else piece.tobytes() for piece in data]
    head = _headed({"checksum": _ZEROS, **metadata}, places)
    checksum = _checksum([head, *pieces])
    with _replacing(path, mode) as file:
        for piece in (head[: _DIGITS.start], checksum, head[_DIGITS.stop :], *pieces):
            file.write(piece)
        file.flush()
        if modified is not None:
            os.utime(file.fileno(), ns=(modified, modified))
        os.fsync(file.fileno())
    return len(head) + end


def _checksum(pieces: Iterable[bytes | memoryview]) -> bytes:
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return total.hexdigest().encode()


def _headed(metadata: Mapping[str, str], places: Mapping[str, Any]) -> bytes:
    header = json.dumps({"__metadata__": metadata, **places}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header


@contextmanager
def _replacing(path: Path, mode: int) -> Iterator[BinaryIO]:
    """A new file that replaces ``path`` at the end."""
    part = path.with_name(f".{secrets.token_hex(8)}{PART}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        part.replace(path)
    finally:
        with suppress(OSError):  # after a success it has another name already
            part.unlink()


class _Place(NamedTuple):
    dtype: mx.Dtype
    shape: tuple[int, ...]
    nbytes: int


def read(path: Path) -> tuple[dict[str, str], dict[str, mx.array]]:
    """The metadata of a file, and its tensors by name, evaluated.

    Raises ``OSError`` if the file cannot be read, and ``LoadError`` if it is not such a file, or
    has changed since it was written.
    """
    with path.open("rb") as file:
        head, metadata, places = _header(path, file)
        pieces = [file.read(place.nbytes) for place in places.values()]
    blank = head[: _DIGITS.start] + _ZEROS.encode() + head[_DIGITS.stop :]
    if _checksum([blank, *pieces]) != head[_DIGITS]:
        raise _changed(path, "it is not what was written")
    arrays = {}
    for (name, place), piece in zip(places.items(), pieces, strict=True):
        flat = np.frombuffer(piece, _IN_NUMPY[place.dtype]).reshape(place.shape)
        array = mx.array(flat)
        arrays[name] = array if array.dtype == place.dtype else array.view(place.dtype)
    mx.eval(arrays)
    return metadata, arrays


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a file, which may have changed since it was written; raises as ``read``."""
    with path.open("rb") as file:
        return _header(path, file)[1]


def _header(path: Path, file: BinaryIO) -> tuple[bytes, dict[str, str], dict[str, _Place]]:
    """The head of a file, its metadata, and the places of the tensors."""
    head = read_head(file, advice=_ADVICE)
    size = os.fstat(file.fileno()).st_size - len(head)
    if not head[8:].startswith(_START):
        raise LoadError(
            f"{path} is not safetensors, or not a saved prefix; pass a file that save_prefix wrote"
        )
    try:
        header = json.loads(head[8:])
        metadata = header.pop("__metadata__")
        places = {name: _place(entry) for name, entry in header.items()}
        starts = [0, *(entry["data_offsets"][1] for entry in header.values())]
        offsets = [entry["data_offsets"][0] for entry in header.values()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _changed(path, str(error)) from error
    if offsets != starts[:-1]:
        raise _changed(path, "its tensors do not lie one after the other")
    if size != starts[-1]:
        state = "truncated" if size < starts[-1] else "too long"
        raise LoadError(
            f"{path} is {state}: expected {starts[-1]:,} bytes of tensors, got {size:,}; {_ADVICE}"
        )
    return head, metadata, places


def _place(entry: Any) -> _Place:
    """A tensor's entry in a header; raises if it is not valid."""
    dtype, shape = _TYPES[entry["dtype"]], tuple(entry["shape"])
    start, end = entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
        raise ValueError(f"a tensor of {shape} at {start} to {end}")
    if end - start != prod(shape) * dtype.size:
        raise ValueError(f"a tensor of {shape} in {end - start} bytes")
    return _Place(dtype, shape, end - start)


def _changed(path: Path, how: str) -> LoadError:
    return LoadError(f"{path} is broken ({how}); {_ADVICE}")
