"""A block as a file, and the model that it belongs to.

Owns what such a file says, the checks before it reaches a model, and a checksum that finds every
change. Must never know where files are kept. A saved prefix is a file of the same kind, with all
tokens from the first one on. Invariants: a file is written whole or not at all; what ``read``
returns is what was written, to the bit, for the same model. Other files raise a ``LoadError`` that
says why.

All arrays are tensors of safetensors: ``layer.i.j`` of each layer that can be cut, and
``state.i.name`` of each other one. The metadata has the name of the format, a SHA-256 of all else
(``checksum``), and in ``about`` a JSON object:

    tokens     the token ids
    start      how many tokens come before them
    parent     the key of those, or nothing for a saved prefix
    model      a digest of the model, and of the type and fixed properties of each layer's cache
    layers     how many arrays each layer that can be cut has
    states     whether there is a snapshot of the other layers
    values     what those hold besides arrays, by names like ``state.0.offset``
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from ...errors import LoadError, OptionError, StateError
from ...loading.sharding import Split
from ..kv.layers import CacheFactory, LayerCache, leaves, sliceable
from ..kv.slot_caches import Quantisation
from .block import Block, TokenIds, as_ids, root_of

FORMAT = "mlxgen prefix 7"
PART = ".part"  # suffix of files that are not written whole yet
_CHECKSUM = "checksum"
_TOKENS = range(-(2**61), 2**31)  # those below zero are patches of images
_PLAIN = (bool, int, float, str)
_PROBES = 64  # values of each parameter in a model's digest


class Layout:
    """Tells the KV of one model from that of any other; computed in its model's thread.

    ``make`` builds the model's empty caches, one for each layer. ``model`` may be anything; what it
    does not show is not checked. ``root`` identifies it, and is the key that its first blocks
    follow.
    """

    def __init__(self, make: CacheFactory, model: Any = None) -> None:
        self.make = make
        self.root = root_of(repr((FORMAT, [_kind(leaf) for leaf in leaves(make())], digest(model))))


def _kind(leaf: LayerCache) -> str:
    """The type of a cache, with the properties of a new one."""
    kept = vars(leaf).items()
    fixed = (f"{k}={v}" for k, v in kept if isinstance(v, (*_PLAIN, Quantisation)))
    return f"{type(leaf).__name__}({', '.join(fixed)})"


def digest(model: Any) -> str:
    """A hash of a model's configuration, of the numbers and names that its modules have (the scale
    of an adapter, for example, and which part of a model on several machines it is), and of the
    name, type and some values of each array.

    Empty for a model without parameters, which only its layers distinguish from others.
    """
    if not hasattr(model, "parameters") or not hasattr(model, "named_modules"):
        return ""
    named = sorted(_arrays_of(model), key=itemgetter(0))
    probes = []
    for _, array in named:
        flat = array.reshape(-1)
        probes.append(flat[:: max(1, flat.size // _PROBES)][:_PROBES])
    mx.eval(probes)
    total = hashlib.sha256(_configuration(model).encode())
    for (name, array), probe in zip(named, probes, strict=True):
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.array(probe.view(mx.uint8)).tobytes())
    return total.hexdigest() if named else ""


def _arrays_of(model: Any) -> Iterator[tuple[str, mx.array]]:
    """All parameters, and the arrays of its modules that are not (frequencies, for example)."""
    yield from cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    for path, module in model.named_modules():
        for name, value in module.items():
            if name.startswith("_") and isinstance(value, mx.array):
                yield f"{path}.{name}", value


def _configuration(model: Any) -> str:
    arguments, known = getattr(model, "args", None), list[Any]()
    if dataclasses.is_dataclass(arguments) and not isinstance(arguments, type):
        known.append(dataclasses.asdict(arguments))
    for path, module in model.named_modules():
        public = {k: v for k, v in vars(module).items() if isinstance(v, _PLAIN) and k[0] != "_"}
        known.append((path, public))
    if (part := Split.had(model)) is not None:
        known.append(str(part))
    return json.dumps(known, sort_keys=True, default=lambda value: type(value).__name__)


def write(
    path: Path, block: Block, layout: Layout, *, mode: int = 0o666, modified: int | None = None
) -> int:
    """Write the whole file or, if that raises ``OSError``, nothing; returns its size.

    ``modified``: its modification time in nanoseconds, if that is not now.
    """
    assert block.tokens is not None and block.layers is not None
    held: dict[str, Any] = {
        f"layer.{i}.{j}": array for i, run in enumerate(block.layers) for j, array in enumerate(run)
    }
    for i, leaf in enumerate(block.snapshot):
        held.update(cast(list[tuple[str, Any]], tree_flatten(vars(leaf), f".state.{i}")))
    arrays = {name: value for name, value in held.items() if isinstance(value, mx.array)}
    values = {name: value for name, value in held.items() if name not in arrays}
    for name, value in values.items():
        if value is not None and not isinstance(value, _PLAIN):
            raise StateError(f"caches with a {type(value).__name__} ({name}) cannot be saved")
    about = {
        "tokens": block.tokens.tolist(),
        "start": block.start,
        "parent": block.parent,
        "model": layout.root,
        "layers": [len(run) for run in block.layers],
        "states": block.has_state,
        "values": values,
    }
    mx.eval(arrays)
    metadata = {"format": FORMAT, "about": json.dumps(about)}
    metadata[_CHECKSUM] = _checksum(metadata, arrays)
    part = path.with_name(f".{secrets.token_hex(8)}{PART}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            mx.save_safetensors(file, arrays, metadata)
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


def checked_path(path: str | os.PathLike[str]) -> Path:
    """A path that can be that of a file; ``OptionError`` for anything else."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise OptionError("path", f"expected the path of a file, got {type(path).__name__}")
    if not os.fspath(path):
        raise OptionError("path", "expected the path of a file, got an empty string")
    if Path(path).name in ("", ".."):
        raise OptionError("path", f"expected the path of a file, got {path}")
    return Path(path)


def save(path: str, prefix: Block, layout: Layout) -> None:
    """Write a prefix to a file of its own; ``OptionError`` if that is not possible."""
    try:
        write(Path(path), prefix, layout)
    except (OSError, ValueError) as error:  # ValueError: a path that cannot be one
        raise OptionError("path", f"{path} cannot be written: {_reason(error)}") from error


def load(path: str, layout: Layout) -> Block:
    """The prefix in a file of its own; ``LoadError`` if it cannot be read or is broken."""
    try:
        return read(Path(path), layout)
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> object:
    return error.strerror if isinstance(error, OSError) else error


def read_tokens(path: Path) -> TokenIds:
    """The tokens of a block, from the head of its file; the caller checks their key."""
    metadata, _ = _open(path)
    with checked(path):
        return _tokens(json.loads(metadata["about"])["tokens"])


def read(path: Path, layout: Layout) -> Block:
    """The block in a file, with evaluated arrays.

    Raises ``OSError`` if it cannot be read, and ``LoadError`` if it is not such a file, is of
    another model, or has changed since it was written.
    """
    metadata, arrays = _open(path)
    with checked(path):
        checksum = metadata.pop(_CHECKSUM)
        mx.eval(arrays)
        if _checksum(metadata, arrays) != checksum:
            raise ValueError("it is not what was written")
        if metadata.get("format") != FORMAT:
            raise LoadError(
                f"expected a saved prefix ({FORMAT!r}), got {metadata.get('format')!r} in {path}; "
                "save the prefix again"
            )
        about = json.loads(metadata["about"])
        if about["model"] != layout.root:
            raise LoadError(
                f"{path} was made with another model, other weights, another configuration or other"
                " options of its KV cache; load it with the model, adapter and options that it was"
                " saved with"
            )
        return _block(about, arrays, layout)


def _open(path: Path) -> tuple[dict[str, str], dict[str, mx.array]]:
    """The metadata, and the tensors by name, not read yet."""
    with path.open("rb"):  # which says better than MLX why it cannot be read
        pass
    with checked(path):
        found: Any = mx.load(str(path), format="safetensors", return_metadata=True)
        arrays, metadata = found
    if _CHECKSUM not in metadata:
        raise LoadError(f"{path} is not a saved prefix; pass a file that save_prefix wrote")
    return metadata, arrays


@contextmanager
def checked(path: Path) -> Iterator[None]:
    """A context for errors that the contents of a file may cause: they become a ``LoadError``."""
    try:
        yield
    except (LoadError, OSError):
        raise
    except Exception as error:  # whatever somebody else may have written
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise LoadError(
            f"{path} is truncated, broken or not safetensors ({reason}); save the prefix again"
        ) from error


def _block(about: dict[str, Any], arrays: dict[str, mx.array], layout: Layout) -> Block:
    tokens, has_state = _tokens(about["tokens"]), bool(about["states"])
    block = Block.of(about["parent"], int(about["start"]), tokens, has_state)
    caches = list(leaves(layout.make()))
    others = [leaf for leaf in caches if not sliceable(leaf)]
    counts = zip(about["layers"], filter(sliceable, caches), strict=True)
    block.layers = tuple(
        tuple([arrays[f"layer.{i}.{j}"] for j in range(count)])
        for i, (count, _) in enumerate(counts)
    )
    if block.start < 0 or not block.is_whole():
        raise ValueError(f"{block.count} tokens after {block.start}, but keys of another length")
    if has_state:
        held = {**arrays, **about["values"]}
        for i, leaf in enumerate(others):
            begin = f"state.{i}."
            names = [name for name in held if name.startswith(begin)]
            state = tree_unflatten([(name.removeprefix(begin), held[name]) for name in names])
            _restore(leaf, state, block.stop)
        block.snapshot = tuple(others)
    return block


def _restore(leaf: LayerCache, state: Any, length: int) -> None:
    """Give a fresh cache the state of a file; raises if that cannot be a state of this cache."""
    for name, fresh in vars(leaf).items():
        held = state[name]  # as in a fresh cache, or a count of tokens that started at 0
        counts = type(fresh) is int and fresh == 0 and type(held) is int and 0 <= held <= length
        if isinstance(fresh, _PLAIN) and not counts and held != fresh:
            raise ValueError(f"{name} is {held!r}")
    leaf.__dict__.update(state)
    offset = getattr(leaf, "offset", length)
    if offset != length and not leaf.empty():
        raise ValueError(f"{length} tokens, but a {type(leaf).__name__} with {offset}")


def _tokens(ids: Any) -> TokenIds:
    if not isinstance(ids, list) or not ids:
        raise ValueError("no tokens")
    if not all(type(token) is int and token in _TOKENS for token in ids):
        raise ValueError("token ids out of range")
    return as_ids(ids)


def _checksum(metadata: Mapping[str, str], arrays: Mapping[str, mx.array]) -> str:
    forms = sorted((name, str(array.dtype), array.shape) for name, array in arrays.items())
    total = hashlib.sha256(json.dumps([sorted(metadata.items()), forms]).encode())
    for name, _, _ in forms:
        data = memoryview(arrays[name])  # type: ignore[arg-type]
        total.update(data if data.c_contiguous else data.tobytes())
    return total.hexdigest()
