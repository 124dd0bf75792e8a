"""Which model a folder holds, wherever it lies and whenever it was written.

Must never read a file of weights as a whole: they have hundreds of gigabytes.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from .safetensors import read_head

_PROBES = 64  # places in the data of each file of weights
_WIDTH = 256  # bytes that are read at each place
_READ_WHOLE = ("config.json", "adapter_config.json", "model.safetensors.index.json", "*.py")


def fingerprint(folder: Path) -> dict[str, str]:
    """A digest of each file that decides what a model computes, by name.

    The configuration, the index and the model's own code count as they are; weights with their
    size, their header and samples of their data, which tell a finetuned model from its base. What
    only says how text becomes tokens does not count. Raises ``WeightsError`` for broken weights.
    """
    found = {}
    for pattern in _READ_WHOLE:
        for file in sorted(folder.glob(pattern)):
            found[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    for file in sorted(folder.glob("*.safetensors")):
        found[file.name] = _of_weights(file)
    return found


def _of_weights(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256(read_head(file, advice="download it again"))
        start, end = file.tell(), os.fstat(file.fileno()).st_size
        for probe in range(_PROBES):
            file.seek(start + (end - start) * probe // _PROBES)
            digest.update(file.read(_WIDTH))
    return f"{end} bytes, {digest.hexdigest()[:16]}"
