"""A prefix of the prefix cache as a file.

Owns the contents of such a file (see ``sealed_file`` for its bytes), and every check before they
reach a model. Must never know the tree that a prefix comes from. Invariant: what ``read`` returns
fits the caches of the model that it was asked for; anything else raises a ``LoadError`` that says
why.

The arrays of all layers are tensors. The metadata has, besides the name of the format:

    tokens     the token ids
    layers     the type and fixed properties of each layer's cache
    model      a digest of the model, possibly empty
    state      the state of each cache, with names of tensors in place of arrays
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from operator import eq
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...errors import LoadError, OptionError, StateError
from ...tokens import Token
from ..kv import CacheFactory, LayerCache
from ..kv.layers import arrays_in, leaves, sliceable
from . import sealed_file
from .layout import PLAIN, Form, digest, forms_made_by, forms_of, kinds

_FORMAT = "mlxgen prefix 2"
_LARGEST_TOKEN = 2**31 - 1
_LEAST_TOKEN = -(2**61)  # a patch of an image
_ADVICE = "load it with the model and options that it was saved with"


def checked_path(path: str | os.PathLike[str]) -> Path:
    """A path that can be that of a file; ``OptionError`` for anything else."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise OptionError("path", f"expected the path of a file, got {type(path).__name__}")
    if not os.fspath(path):
        raise OptionError("path", "expected the path of a file, got an empty string")
    if Path(path).name in ("", ".."):
        raise OptionError("path", f"expected the path of a file, got {path}")
    return Path(path)


def write(
    path: Path,
    tokens: Sequence[Token],
    caches: Sequence[LayerCache],
    *,
    make: CacheFactory,
    model: Any,
) -> None:
    """Write ``caches`` that hold ``tokens``: the whole file or, if that fails, none."""
    arrays: dict[str, mx.array] = {}
    state = [
        {name: _packed(value, f"{i}.{name}", arrays) for name, value in vars(leaf).items()}
        for i, leaf in enumerate(leaves(caches))
    ]
    metadata = {
        "format": _FORMAT,
        "tokens": json.dumps(list(tokens)),
        "layers": json.dumps(kinds(make)),
        "model": digest(model),
        "state": json.dumps(state),
    }
    sealed_file.write(path, metadata, arrays)


def read(path: Path, *, make: CacheFactory, model: Any) -> tuple[list[Token], list[LayerCache]]:
    """The tokens of a file, and evaluated caches that hold them.

    ``model`` may be anything; what it does not tell is not checked.
    """
    metadata, arrays = sealed_file.read(path)
    try:
        _check_model(path, metadata, make, model)
        tokens = _tokens(json.loads(metadata["tokens"]))
        caches = _restored(json.loads(metadata["state"]), arrays, make, len(tokens))
        if callable(model):
            _compare(path, forms_of(caches), forms_made_by(model, make), "holds", Form.allows)
    except LoadError:
        raise
    except Exception as error:  # anything that the contents of the file can cause
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise LoadError(f"{path} is broken ({reason}); save the prefix again") from error
    return tokens, caches


def _check_model(path: Path, metadata: dict[str, str], make: CacheFactory, model: Any) -> None:
    if metadata.get("format") != _FORMAT:
        raise LoadError(
            f"expected a saved prefix ({_FORMAT!r}), got {metadata.get('format')!r} in {path}; "
            "save the prefix again"
        )
    theirs = [[kind] for kind in json.loads(metadata["layers"])]
    _compare(path, theirs, [[kind] for kind in kinds(make)], "is a", eq)
    mine, other = digest(model), metadata["model"]
    if mine and other and mine != other:
        raise LoadError(
            f"{path} was made with another model, other weights or another configuration (model"
            f" {other[:12]}, not {mine[:12]}); load it with the model and adapter that it was"
            " saved with"
        )


def _compare(
    path: Path,
    found: Sequence[Sequence[Any]],
    expected: Sequence[Sequence[Any]],
    verb: str,
    fits: Callable[[Any, Any], bool],
) -> None:
    """Raise unless what a file has of each cache fits what is expected of it."""
    if len(found) != len(expected):
        raise LoadError(
            f"{path} has {len(found)} caches, but this model has {len(expected)}; {_ADVICE}"
        )
    for i, (theirs, ours) in enumerate(zip(found, expected, strict=True)):
        if len(theirs) != len(ours) or not all(map(fits, ours, theirs)):
            one, other = (" ".join(map(str, each)) or "nothing" for each in (theirs, ours))
            raise LoadError(
                f"{path}: cache {i} {verb} {one}, but in this model it {verb} {other}; {_ADVICE}"
            )


def _tokens(ids: Any) -> list[Token]:
    if not isinstance(ids, list) or not ids:
        raise ValueError("no tokens")
    if not all(type(token) is int and _LEAST_TOKEN <= token <= _LARGEST_TOKEN for token in ids):
        raise ValueError("token ids out of range")
    return ids


def _packed(value: Any, name: str, arrays: dict[str, mx.array]) -> Any:
    """A value of a cache as JSON; its arrays go to ``arrays`` and are replaced by their names."""
    if isinstance(value, mx.array):
        arrays[name] = value
        return {"array": name}
    if type(value) in (list, tuple):
        items = [_packed(item, f"{name}.{i}", arrays) for i, item in enumerate(value)]
        return {type(value).__name__: items}
    if value is None or isinstance(value, PLAIN):
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


def _restored(
    states: list[dict[str, Any]], arrays: dict[str, mx.array], make: CacheFactory, length: int
) -> list[LayerCache]:
    """Fresh caches with the states of a file; raises if a state cannot be one of theirs."""
    caches = make()
    for leaf, kept in zip(leaves(caches), states, strict=True):
        if kept.keys() != vars(leaf).keys():
            raise ValueError(f"a {type(leaf).__name__} does not consist of {', '.join(kept)}")
        for name, fresh in vars(leaf).items():
            _check_plain(name, kept[name], fresh, length)
        leaf.__dict__.update({name: _unpacked(value, arrays) for name, value in kept.items()})
        held = getattr(leaf, "offset", length)
        if held != length and not leaf.empty():
            raise ValueError(f"{length} tokens, but a {type(leaf).__name__} with {held}")
        if sliceable(leaf) and any(array.shape[-2] != length for array in arrays_in(leaf)):
            raise ValueError(f"{length} tokens, but keys of another length")
    return caches


def _check_plain(name: str, kept: Any, fresh: Any, length: int) -> None:
    """Raise unless a property is as in a fresh cache, or a count of tokens that started at 0."""
    if not isinstance(fresh, PLAIN):
        return
    counts = type(fresh) is int and fresh == 0 and type(kept) is int and 0 <= kept <= length
    if not counts and (type(kept) is not type(fresh) or kept != fresh):
        raise ValueError(f"{name} is {kept!r}")
