"""A safetensors file in which every change is detected.

Owns the bytes, as MLX writes and reads them, and a checksum over metadata and tensors. Must never
know what the tensors are for. Invariants: a file is written whole or not at all; what is read is
what was written, to the bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...errors import LoadError

PART = ".part"  # ends the names of files that are not written whole yet
_CHECKSUM = "checksum"  # SHA-256, the only metadata that it does not cover


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
    held = dict(arrays)
    mx.eval(held)
    about = {**metadata, _CHECKSUM: _checksum(metadata, held)}
    part = path.with_name(f".{secrets.token_hex(8)}{PART}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            mx.save_safetensors(file, held, about)
            file.flush()
            size = file.tell()
            if modified is not None:
                os.utime(handle, ns=(modified, modified))
            os.fsync(handle)
        part.replace(path)
    finally:
        with suppress(OSError):  # after a success it has another name already
            part.unlink()
    return size


def read(path: Path) -> tuple[dict[str, str], dict[str, mx.array]]:
    """The metadata of a file, and its tensors by name, evaluated.

    Raises ``OSError`` if the file cannot be read, and ``LoadError`` if it is not such a file, or
    has changed since it was written.
    """
    metadata, arrays = _open(path)
    checksum = metadata.pop(_CHECKSUM)
    try:
        mx.eval(arrays)
    except Exception as error:
        raise _broken(path, error) from error
    if _checksum(metadata, arrays) != checksum:
        raise _broken(path, "it is not what was written")
    return metadata, arrays


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a file, which may have changed since it was written; raises as ``read``."""
    return _open(path)[0]


def _open(path: Path) -> tuple[dict[str, str], dict[str, mx.array]]:
    """The metadata, and the tensors, which are not read yet."""
    with path.open("rb"):  # which says better than MLX why it cannot be read
        pass
    try:
        found: Any = mx.load(str(path), format="safetensors", return_metadata=True)
    except Exception as error:  # whatever somebody else may have written
        raise _broken(path, error) from error
    arrays, metadata = found
    if _CHECKSUM not in metadata:
        raise LoadError(f"{path} is not a saved prefix; pass a file that save_prefix wrote")
    return metadata, arrays


def _checksum(metadata: Mapping[str, str], arrays: Mapping[str, mx.array]) -> str:
    forms = sorted((name, str(array.dtype), array.shape) for name, array in arrays.items())
    total = hashlib.sha256(json.dumps([sorted(metadata.items()), forms]).encode())
    for name, _, _ in forms:
        data = memoryview(arrays[name])  # type: ignore[arg-type]
        total.update(data if data.c_contiguous else data.tobytes())
    return total.hexdigest()


def _broken(path: Path, why: object) -> LoadError:
    reason = " ".join(str(why).split())[:200]
    return LoadError(
        f"{path} is truncated, broken or not safetensors ({reason}); save the prefix again"
    )
