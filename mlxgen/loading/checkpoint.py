"""A model's files on disk, checked before the model is loaded.

mlx-lm has the last word on what is a model. The checks here find what would crash it, what it would
load wrongly, and how much memory it needs. They read the configuration, the list of weight files
and, through MLX, the headers of these. Invariant: a ``Checkpoint`` has a readable ``config.json``
with a ``model_type``, and its weight files are complete; no tensor was read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeAlias, cast

from ..errors import (
    AdapterError,
    LoadError,
    ModelNotFoundError,
    UnsupportedModelError,
    WeightsError,
    failing,
)

Part: TypeAlias = Callable[[Path], Collection[str] | None]
"""Gives the names of the weight files that a folder needs, or ``None`` for all. The folder may not
have any of them yet."""

HEADS = "mtp*.safetensors"
"""Multi-token-prediction heads in files of their own; others are among a model's weights."""

_LEFT_OUT = "the multi-token-prediction head is left out"
_OTHER_FORMATS = {"*.gguf": "GGUF", "pytorch_model*.bin": "PyTorch", "*.npz": "NumPy"}
_READ_WHOLE = ("config.json", "adapter_config.json", "model.safetensors.index.json", "*.py")
_HEADER = 1 << 20  # bytes at the start of a file of weights, which hold its header
_PROBES, _WIDTH = 64, 256  # places in its data, and bytes that are read at each
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files of one model; ``tensors`` has the size of each weight, in bytes."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, int]

    @classmethod
    def open(cls, folder: Path, part: Part | None = None) -> Checkpoint:
        """Check the model in ``folder``, which needs all weight files or those of a ``part``.

        Raises ``ModelNotFoundError`` if there is no model, ``WeightsError`` if its weights are
        missing or truncated, and ``LoadError`` if its configuration is broken.
        """
        config, promised = config_of(folder), _promised(folder)
        needed = None if part is None else part(folder)
        if needed is None:
            files = sorted(folder.glob("model*.safetensors"))
            problem = None if files else missing_files(folder) or _without_weights(folder)
        else:
            files = [folder / name for name in sorted(needed)]
            problem = _lacking(folder, sorted(needed))
        if problem is not None:
            raise WeightsError(problem)
        tensors = {name: each.nbytes for file in files for name, each in tensors_in(file).items()}
        heads = {folder / name for name in promised if fnmatch(name, HEADS)}
        for file in sorted(heads.union(folder.glob(HEADS))):
            try:
                tensors |= {name: each.nbytes for name, each in tensors_in(file).items()}
            except WeightsError as error:
                logger.warning(f"{_LEFT_OUT}: %s", error)
        return cls(folder, config, tensors)

    @property
    def nbytes(self) -> int:
        """The size of the weights."""
        return sum(self.tensors.values())


def config_of(folder: Path) -> dict[str, Any]:
    """The configuration of the model in ``folder``, checked; raises as ``Checkpoint.open``."""
    try:
        if not folder.exists():
            raise ModelNotFoundError(f"there is no folder {folder}; check the path")
        if not folder.is_dir():
            raise ModelNotFoundError(f"{folder} is a file; pass the folder that holds the model")
        if not (folder / "config.json").is_file():
            raise ModelNotFoundError(
                f"{folder} is not a model folder: it has no config.json; expected config.json,"
                " model*.safetensors and a tokenizer"
            )
    except OSError as error:
        raise ModelNotFoundError(f"{folder} cannot be read: {error.strerror}") from error
    config = read_json(folder / "config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise UnsupportedModelError(
            f"{folder / 'config.json'} has no model_type, so the architecture is unknown;"
            " download the model again"
        )
    return config


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; raises ``LoadError`` if it cannot be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} cannot be read as JSON: {error}; download it again") from error
    except RecursionError as error:
        raise LoadError(f"{path} is nested too deeply; download it again") from error
    if not isinstance(value, dict):
        raise LoadError(f"{path} does not hold a JSON object; download it again")
    return value


def template_beside(folder: Path) -> str | dict[str, str] | None:
    """The chat template in ``chat_template.json``, which mlx-lm does not read, or several by name;
    ``None`` without any. A malformed file is left out, with a warning in the log."""
    path = folder / "chat_template.json"
    if not path.is_file():
        return None
    try:
        found = read_json(path).get("chat_template")
        if isinstance(found, list):
            found = {str(each["name"]): str(each["template"]) for each in found}
    except (LoadError, LookupError, TypeError) as error:
        logger.warning("%s is left out: %s", path, " ".join(str(error).split()))
        return None
    return found if isinstance(found, str | dict) and found else None


def path_of(name: str | os.PathLike[str]) -> Path:
    """A path, which may start with ``~`` or ``~user``."""
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~ with the name of an unknown user
        return Path(name)


def check_adapter(folder: Path) -> int:
    """Check an adapter's files before the model's weights are read; returns its bytes."""
    if not folder.is_dir():
        raise AdapterError(f"there is no adapter folder {folder}; check the path")
    if (folder / "adapter_model.safetensors").exists():
        raise AdapterError(
            f"expected mlx-lm's adapters.safetensors in {folder}, got a PEFT adapter; pass a folder"
            " that mlx_lm.lora wrote"
        )
    for name in ("adapter_config.json", "adapters.safetensors"):
        if not (folder / name).is_file():
            raise AdapterError(
                f"{folder} is not an adapter of mlx-lm: it has no {name}; pass a folder that"
                " mlx_lm.lora wrote"
            )
    try:
        read_json(folder / "adapter_config.json")
        return sum(each.nbytes for each in tensors_in(folder / "adapters.safetensors").values())
    except LoadError as error:
        raise AdapterError(f"the adapter is broken: {error}") from error


# ---- weight files ----


def tensors_in(path: Path) -> dict[str, Any]:
    """The arrays in a safetensors file, none of which has been read; raises ``WeightsError`` unless
    the file is complete."""
    import mlx.core as mx

    try:
        with failing(WeightsError, f"{path} cannot be read; download it again"):
            return cast(dict[str, mx.array], mx.load(str(path), format="safetensors"))
    except WeightsError:
        with contextlib.suppress(OSError), path.open("rb") as file:
            if file.read(8) == b"version ":  # followed by the address of git-lfs's specification
                raise WeightsError(
                    f"{path} is a git-lfs pointer, not weights; run `git lfs pull`"
                ) from None
        raise


def missing_files(folder: Path) -> str | None:
    """A sentence about the weight files that a folder's index promises and that are missing;
    ``None`` if none are. Some folders have the index of another upload."""
    return _lacking(folder, sorted(n for n in _promised(folder) if not fnmatch(n, HEADS)))


def _promised(folder: Path) -> set[str]:
    """The weight files that the index in a folder names, if there is one that can be read."""
    try:
        named = read_json(folder / "model.safetensors.index.json")["weight_map"].values()
    except (LoadError, LookupError, TypeError, AttributeError):
        return set()
    return {name for name in named if isinstance(name, str)}


def _lacking(folder: Path, names: Sequence[str]) -> str | None:
    missing = [name for name in names if not (folder / name).is_file()]
    if not missing:
        return None
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return (
        f"{folder} lacks {missing[0]}{more} of its {len(names)} weight files; download the model"
        " again"
    )


def _without_weights(folder: Path) -> str:
    for pattern, name in _OTHER_FORMATS.items():
        if any(folder.glob(pattern)):
            return (
                f"expected model*.safetensors in {folder}, got {name} weights; convert the model"
                " with mlx_lm.convert"
            )
    return f"{folder} holds no weights: there is no model*.safetensors; download the model again"


def fingerprint(folder: Path) -> dict[str, str]:
    """A digest of each file that decides what a model computes, by name; it depends neither on the
    path nor on the dates of the files.

    The configuration, the index and the model's own code are hashed whole; weights by their size,
    their header and samples of their data, which tell a fine-tuned model from its base. Files that
    only say how text becomes tokens do not count.
    """
    found = {}
    for pattern in _READ_WHOLE:
        for file in sorted(folder.glob(pattern)):
            found[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        with file.open("rb") as opened:
            digest = hashlib.sha256(opened.read(_HEADER))
            for probe in range(_PROBES):
                opened.seek(size * probe // _PROBES)
                digest.update(opened.read(_WIDTH))
        found[file.name] = f"{size} bytes, {digest.hexdigest()[:16]}"
    return found
