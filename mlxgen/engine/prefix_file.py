"""A prefix of the prefix cache as a safetensors file.

Owns the format, and every check that stands between a file and a model. Must never know the
tree that a prefix comes from. Invariant: what ``read`` returns fits the caches of the model
that it was asked for; whatever else a path may hold ends in a ``LoadError`` that says why.

The arrays of all layers are tensors. The metadata has, besides the format's name:

    tokens     the token ids
    layers     the type and fixed properties of each layer's cache
    model      a digest of the model's weights, or nothing
    state      what each cache consists of, with names of tensors in the place of arrays
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from ..errors import LoadError, OptionError, StateError
from ..tokens import Token
from .kv import CacheFactory, LayerCache
from .segments import arrays_in, leaves, signature, sliceable

_FORMAT = "mlxgen prefix 1"
_PLAIN = (bool, int, float, str)
_LARGEST_TOKEN = 2**31 - 1
_PROBES = 64  # values of each parameter in a model's digest


def write(
    path: Path,
    tokens: Sequence[Token],
    caches: Sequence[LayerCache],
    *,
    make: CacheFactory,
    model: Any,
) -> None:
    """Write ``caches`` that hold ``tokens``: the whole file or, where that fails, none."""
    arrays: dict[str, mx.array] = {}
    state = [
        {name: _packed(value, f"{i}.{name}", arrays) for name, value in vars(leaf).items()}
        for i, leaf in enumerate(leaves(caches))
    ]
    metadata = {
        "format": _FORMAT,
        "tokens": json.dumps(list(tokens)),
        "layers": json.dumps(_kinds(make)),
        "model": digest(model),
        "state": json.dumps(state),
    }
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            mx.save_safetensors(file, arrays, metadata)
        part.replace(path)
    except OSError as error:
        raise OptionError("path", f"{path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):  # where all went well it has another name by now
            part.unlink()


def read(
    path: Path, *, make: CacheFactory, model: Any, expected: list[str] | None
) -> tuple[list[Token], list[LayerCache]]:
    """The tokens of a file, and evaluated caches that hold them.

    ``expected`` is the ``signature`` of the model's caches, where it is known.
    """
    header = _header(path)
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or metadata.get("format") != _FORMAT:
        raise LoadError(f"{path} is no saved prefix ({_FORMAT!r}); give a file that save() wrote")
    _compare(path, metadata, make, model)
    try:
        arrays = mx.load(str(path), format="safetensors")
        assert isinstance(arrays, dict)
        mx.eval(arrays)
        tokens = [int(token) for token in json.loads(metadata["tokens"])]
        if min(tokens, default=-1) < 0 or max(tokens) > _LARGEST_TOKEN:
            raise ValueError("no tokens, or ids out of range")
        caches = make()
        for leaf, kept in zip(leaves(caches), json.loads(metadata["state"]), strict=True):
            _restore(leaf, kept, arrays, len(tokens))
        found = signature(caches)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise LoadError(f"{path} is broken ({error}); save the prefix again") from error
    if expected is not None:
        _differ(path, "holds", found, expected)
    return tokens, caches


def digest(model: Any) -> str:
    """A name for a model's weights: of every parameter its name, shape, type and some values.

    Empty for a model without parameters, which can be told from others by its layers only.
    """
    if not hasattr(model, "parameters"):
        return ""
    named = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    probes = []
    for _, array in named:
        flat = array.reshape(-1)
        probes.append(flat[:: max(1, flat.size // _PROBES)][:_PROBES])
    mx.eval(probes)
    total = hashlib.sha256()
    for (name, array), probe in zip(named, probes, strict=True):
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.array(probe.view(mx.uint8)).tobytes())
    return total.hexdigest() if named else ""


def _kinds(make: CacheFactory) -> list[str]:
    """The type of each layer's cache, with what is fixed about it from the start."""
    found = []
    for leaf in leaves(make()):
        fixed = (f"{k}={v}" for k, v in vars(leaf).items() if isinstance(v, _PLAIN))
        found.append(f"{type(leaf).__name__}({', '.join(fixed)})")
    return found


def _compare(path: Path, metadata: dict[str, Any], make: CacheFactory, model: Any) -> None:
    try:
        kinds = json.loads(metadata["layers"])
        other = metadata["model"]
        _differ(path, "is a", kinds, _kinds(make))
    except (ValueError, KeyError, TypeError) as error:
        raise LoadError(f"{path} is broken ({error}); save the prefix again") from error
    mine = digest(model)
    if mine and other and mine != other:
        raise LoadError(
            f"{path} was made with other weights (model {other[:12]}, not {mine[:12]}); load it"
            " with the model and adapter that it was saved with"
        )


def _differ(path: Path, verb: str, found: list[str], expected: list[str]) -> None:
    """Raise ``LoadError`` for the first layer that is not what it should be."""
    advice = "load it with the model and options that it was saved with"
    if len(found) != len(expected):
        raise LoadError(
            f"{path} has {len(found)} caches, but this model has {len(expected)}; {advice}"
        )
    for i, (theirs, ours) in enumerate(zip(found, expected, strict=True)):
        if theirs != ours:
            raise LoadError(
                f"{path}: cache {i} {verb} {theirs}, but in this model it {verb} {ours}; {advice}"
            )


def _packed(value: Any, name: str, arrays: dict[str, mx.array]) -> Any:
    """A value of a cache as JSON; arrays go to ``arrays``, and their names in their place."""
    if isinstance(value, mx.array):
        arrays[name] = value
        return {"array": name}
    if type(value) in (list, tuple):
        items = [_packed(item, f"{name}.{i}", arrays) for i, item in enumerate(value)]
        return {type(value).__name__: items}
    if value is None or isinstance(value, _PLAIN):
        return value
    raise StateError(f"caches with a {type(value).__name__} ({name}) cannot be saved to a file")


def _unpacked(value: Any, arrays: dict[str, mx.array]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    build: dict[str, Callable[[Any], Any]] = {
        "array": lambda name: arrays[name],
        "list": lambda items: [_unpacked(item, arrays) for item in items],
        "tuple": lambda items: tuple(_unpacked(item, arrays) for item in items),
    }
    return build[kind](content)


def _restore(
    leaf: LayerCache, kept: dict[str, Any], arrays: dict[str, mx.array], length: int
) -> None:
    """Give a fresh cache the state of a file; raises for what cannot be such a state."""
    if kept.keys() != vars(leaf).keys():
        raise ValueError(f"a {type(leaf).__name__} does not consist of {', '.join(kept)}")
    leaf.__dict__.update({name: _unpacked(value, arrays) for name, value in kept.items()})
    held = getattr(leaf, "offset", length)
    if held != length and not leaf.empty():
        raise ValueError(f"{length} tokens, but a {type(leaf).__name__} with {held}")
    if sliceable(leaf) and any(array.shape[-2] != length for array in arrays_in(leaf)):
        raise ValueError(f"{length} tokens, but keys of another length")


def _header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file of which every byte is there.

    The format: the header's length (8 bytes, little-endian), the header as JSON with the
    place of each tensor in the data, the data. MLX reads the data late, and where bytes are
    missing by then it is too late for a good message.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            first = file.read(8)
            length = struct.unpack("<Q", first)[0] if len(first) == 8 else size
            if length > size - 8:
                raise LoadError(
                    f"{path} is truncated or not safetensors: {size:,} bytes do not hold its"
                    " header; save the prefix again"
                )
            header = json.loads(file.read(length))
        end = 8 + length
        for name, item in header.items():
            if name != "__metadata__":
                first_byte, last_byte = item["data_offsets"]
                if not 0 <= first_byte <= last_byte:
                    raise ValueError(f"tensor {name} at {first_byte} to {last_byte}")
                end = max(end, 8 + length + last_byte)
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise LoadError(
            f"{path} is not safetensors, or broken ({error}); save the prefix again"
        ) from error
    if end > size:
        raise LoadError(
            f"{path} is truncated: {size:,} bytes of {end:,} are there; save the prefix again"
        )
    loaded: dict[str, Any] = header
    return loaded
