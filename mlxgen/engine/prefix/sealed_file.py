"""A safetensors file in which every change is detected.

Owns the bytes: a header with metadata and the place of each tensor, the tensors, and two
checksums over all of it. Must never know what the tensors are for. Invariants: a file is
written whole or not at all; what is read is what was written, to the bit.

    8 bytes    the length of the header, little-endian
    header     JSON. Its metadata begins with ``checksum``, SHA-256 of the length and the header
               with zeros in place of the checksum, and ``data``, SHA-256 of the rest
    data       the tensors, one after the other
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import struct
from collections.abc import Iterator, Mapping
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
    about = {"checksum": _ZEROS, "data": _ZEROS, **metadata}
    with _replacing(path, mode) as file:
        file.write(_headed(about, places))
        total = hashlib.sha256()
        for array in arrays.values():
            piece = memoryview(array)  # type: ignore[arg-type]
            data = piece if piece.c_contiguous else piece.tobytes()
            total.update(data)
            file.write(data)
        size = file.tell()
        about["data"] = total.hexdigest()
        about["checksum"] = hashlib.sha256(_headed(about, places)).hexdigest()
        file.seek(0)
        file.write(_headed(about, places))
        file.flush()
        if modified is not None:
            os.utime(file.fileno(), ns=(modified, modified))
        os.fsync(file.fileno())
    return size


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
        head = read_head(file, advice=_ADVICE)
        metadata, places = _header(path, head, os.fstat(file.fileno()).st_size - len(head))
        total = hashlib.sha256()
        arrays = {}
        for name, place in places.items():
            piece = file.read(place.nbytes)
            total.update(piece)
            if len(piece) < place.nbytes:
                break
            flat = np.frombuffer(piece, _IN_NUMPY[place.dtype]).reshape(place.shape)
            array = mx.array(flat)
            arrays[name] = array if array.dtype == place.dtype else array.view(place.dtype)
    if total.hexdigest() != metadata["data"]:
        raise _changed(path, "its data is not what was written")
    mx.eval(arrays)
    return metadata, arrays


def _header(path: Path, head: bytes, size: int) -> tuple[dict[str, str], dict[str, _Place]]:
    """The metadata, and the places of the tensors in ``size`` bytes of data."""
    if not head[8:].startswith(_START):
        raise LoadError(
            f"{path} is not safetensors, or not a saved prefix; pass a file that save_prefix wrote"
        )
    blank = head[: _DIGITS.start] + _ZEROS.encode() + head[_DIGITS.stop :]
    if hashlib.sha256(blank).hexdigest().encode() != head[_DIGITS]:
        raise _changed(path, "its header is not the one that was written")
    try:
        header = json.loads(head[8:])
        metadata = header.pop("__metadata__")
        places = {name: _place(entry) for name, entry in header.items()}
        data: str = metadata["data"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _changed(path, str(error)) from error
    wanted = sum(place.nbytes for place in places.values())
    offsets = [entry["data_offsets"] for entry in header.values()]
    starts = [0, *(offset[1] for offset in offsets)]
    if any(a != b for (a, _), b in zip(offsets, starts, strict=False)) or not data:
        raise _changed(path, "its tensors do not lie one after the other")
    if size != wanted:
        state = "truncated" if size < wanted else "too long"
        raise LoadError(
            f"{path} is {state}: expected {wanted:,} bytes of tensors, got {size:,}; {_ADVICE}"
        )
    return metadata, places


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
