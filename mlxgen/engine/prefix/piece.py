"""A piece of KV as a file: of a run of tokens, or of a whole prefix.

Owns the contents of such a file (see ``sealed_file`` for its bytes), and every check before they
reach a model. Must never know who keeps pieces, or where. Invariant: what ``read`` returns fits
the caches of the model that it was asked for; anything else raises a ``LoadError`` that says why.

All arrays are tensors. The metadata has, besides the name of the format:

    tokens     the token ids
    start      how many tokens come before them
    parent     the key of those (see ``entry``), or nothing for a saved prefix
    layers     the type and fixed properties of each layer's cache
    model      a digest of the model, possibly empty
    segment    the arrays of each sliceable layer, with names of tensors in place of arrays
    snapshot   the state of each other layer, likewise; ``null`` if there is none
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import eq
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...errors import LoadError, OptionError, StateError
from ..kv.layers import LayerCache, fill, leaves, sliceable
from . import sealed_file
from .layout import PLAIN, Form, Layout, forms_of
from .segments import Segment, Snapshot
from .tree import TokenIds, as_ids

FORMAT = "mlxgen prefix 3"
_LARGEST_TOKEN = 2**31 - 1
_LEAST_TOKEN = -(2**61)  # a patch of an image
_ADVICE = "load it with the model and options that it was saved with"


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What a model's layers hold of ``tokens``, which come after ``start`` others."""

    start: int
    tokens: TokenIds
    segment: Segment
    snapshot: Snapshot | None  # after the last of the tokens
    parent: str = ""

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)

    @property
    def nbytes(self) -> int:
        return self.segment.nbytes + (0 if self.snapshot is None else self.snapshot.nbytes)


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
    path: Path, piece: Piece, layout: Layout, *, mode: int = 0o666, modified: int | None = None
) -> int:
    """Write a piece as ``sealed_file.write`` does; returns the size of the file."""
    arrays: dict[str, mx.array] = {}
    segment = _packed(piece.segment.layers, "segment", arrays)
    snapshot = piece.snapshot and [
        {name: _packed(value, f"snapshot.{i}.{name}", arrays) for name, value in vars(leaf).items()}
        for i, leaf in enumerate(piece.snapshot.leaves)
    ]
    metadata = {
        "format": FORMAT,
        "tokens": json.dumps(piece.tokens.tolist()),
        "start": str(piece.start),
        "parent": piece.parent,
        "layers": json.dumps(layout.kinds),
        "model": layout.digest,
        "segment": json.dumps(segment),
        "snapshot": json.dumps(snapshot),
    }
    return sealed_file.write(path, metadata, arrays, mode=mode, modified=modified)


def read(path: Path, layout: Layout) -> Piece:
    """The piece in a file, with evaluated arrays; ``OSError`` if it cannot be read."""
    metadata, arrays = sealed_file.read(path)
    try:
        _check_model(path, metadata, layout)
        return _checked_piece(path, metadata, arrays, layout)
    except LoadError:
        raise
    except Exception as error:  # anything that the contents of the file can cause
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise LoadError(f"{path} is broken ({reason}); save the prefix again") from error


def _check_model(path: Path, metadata: dict[str, str], layout: Layout) -> None:
    if metadata.get("format") != FORMAT:
        raise LoadError(
            f"expected a saved prefix ({FORMAT!r}), got {metadata.get('format')!r} in {path}; "
            "save the prefix again"
        )
    theirs = [[kind] for kind in json.loads(metadata["layers"])]
    _compare(path, theirs, [[kind] for kind in layout.kinds], "is a", eq)
    mine, other = layout.digest, metadata["model"]
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


def _tokens(ids: Any) -> TokenIds:
    if not isinstance(ids, list) or not ids:
        raise ValueError("no tokens")
    if not all(type(token) is int and _LEAST_TOKEN <= token <= _LARGEST_TOKEN for token in ids):
        raise ValueError("token ids out of range")
    return as_ids(ids)


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


def _checked_piece(
    path: Path, metadata: dict[str, str], arrays: dict[str, mx.array], layout: Layout
) -> Piece:
    """What a file says, if it can be a piece of such caches; raises if it cannot."""
    tokens, start = _tokens(json.loads(metadata["tokens"])), int(metadata["start"])
    columns = _unpacked(json.loads(metadata["segment"]), arrays)
    states = json.loads(metadata["snapshot"])
    stop = start + len(tokens)
    caches = list(leaves(layout.make()))
    sliced, others = [[c for c in caches if sliceable(c) is kind] for kind in (True, False)]
    segment, snapshot = Segment(columns, len(tokens)), None
    for leaf, column in zip(sliced, columns, strict=True):
        fill(leaf, column, stop)
    if start < 0 or not segment.is_whole():
        raise ValueError(f"{len(tokens)} tokens after {start}, but keys of another length")
    if states is not None:
        for leaf, state in zip(others, states, strict=True):
            _restore(leaf, state, arrays, stop)
        snapshot = Snapshot(tuple(others), stop)
    if layout.forms is not None:
        held = [
            (c, f) for c, f in zip(caches, layout.forms, strict=True) if snapshot or c in sliced
        ]
        found, expected = forms_of([leaf for leaf, _ in held]), [forms for _, forms in held]
        _compare(path, found, expected, "holds", Form.allows)
    return Piece(start, tokens, segment, snapshot, metadata["parent"])


def _restore(leaf: LayerCache, kept: Any, arrays: dict[str, mx.array], length: int) -> None:
    """Give a fresh cache the state of a file; raises if it cannot be a state of its own."""
    if kept.keys() != vars(leaf).keys():
        raise ValueError(f"a {type(leaf).__name__} does not consist of {', '.join(kept)}")
    for name, fresh in vars(leaf).items():
        _check_plain(name, kept[name], fresh, length)
    leaf.__dict__.update({name: _unpacked(value, arrays) for name, value in kept.items()})
    held = getattr(leaf, "offset", length)
    if held != length and not leaf.empty():
        raise ValueError(f"{length} tokens, but a {type(leaf).__name__} with {held}")


def _check_plain(name: str, kept: Any, fresh: Any, length: int) -> None:
    """Raise unless a property is as in a fresh cache, or a count of tokens that started at 0."""
    if not isinstance(fresh, PLAIN):
        return
    counts = type(fresh) is int and fresh == 0 and type(kept) is int and 0 <= kept <= length
    if not counts and (type(kept) is not type(fresh) or kept != fresh):
        raise ValueError(f"{name} is {kept!r}")
