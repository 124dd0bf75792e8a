"""What a model's caches look like, and which model it is.

Owns the checks whether two models are the same, and whether caches from elsewhere fit a model.
Must never know where they come from. Only some values of the weights are computed for that:
shapes are known before arrays are evaluated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, cast

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ChunkedKVCache, ConcatenateKVCache, RotatingKVCache

from ...loading.sharding import Split
from ..kv.layers import CacheFactory, InRuns, LayerCache, arrays_in, leaves, sliceable
from ..kv.quantised import Quantisation

PLAIN = (bool, int, float, str)
_PROBES = 64  # values of each parameter in a model's digest
_LENGTHS = (1, 5)  # tokens of two trial runs: an axis that differs between them is time
_TIMED = (RotatingKVCache, ChunkedKVCache, ConcatenateKVCache)  # on axis -2, as in sliceable ones


def digest(model: Any) -> str:
    """A hash of a model's configuration, of the numbers and names that its modules have (the scale
    of an adapter, for example, and which part of a model on several machines it is), and of the
    name, type and some values of each array.

    Empty for a model without parameters, which only its layers distinguish from others.
    """
    if not hasattr(model, "parameters") or not hasattr(model, "named_modules"):
        return ""
    named = sorted(_arrays_of(model), key=lambda item: item[0])
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
        public = {k: v for k, v in vars(module).items() if isinstance(v, PLAIN) and k[0] != "_"}
        known.append((path, public))
    if (part := Split.had(model)) is not None:
        known.append(str(part))
    return json.dumps(known, sort_keys=True, default=lambda value: type(value).__name__)


def kinds(make: CacheFactory) -> list[str]:
    """The type of each layer's cache, with the properties of a new one."""
    found = []
    for leaf in leaves(make()):
        kept = vars(leaf).items()
        fixed = (f"{k}={v}" for k, v in kept if isinstance(v, (*PLAIN, Quantisation)))
        found.append(f"{type(leaf).__name__}({', '.join(fixed)})")
    return found


class Form(NamedTuple):
    """The type and shape of an array in a cache; ``None`` for an axis that may change."""

    dtype: mx.Dtype
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sizes = ", ".join("*" if size is None else str(size) for size in self.shape)
        return f"{str(self.dtype).rpartition('.')[2]}[{sizes}]"

    def allows(self, other: Form) -> bool:
        return (
            self.dtype == other.dtype
            and len(self.shape) == len(other.shape)
            and all(a in (None, b) for a, b in zip(self.shape, other.shape, strict=True))
        )

    def or_also(self, other: Form) -> Form:
        """The form of both: an axis on which they differ may change."""
        if len(self.shape) != len(other.shape):
            return self
        sizes = zip(self.shape, other.shape, strict=True)
        return Form(self.dtype, tuple(a if a == b else None for a, b in sizes))


Forms: TypeAlias = Sequence[Sequence[Form]]
"""For each cache, in the order of ``leaves``, the forms of its arrays."""


def forms_of(caches: Sequence[LayerCache]) -> Forms:
    """The forms of existing caches; of keys and values the number of places may change."""
    found = []
    for leaf in leaves(caches):
        arrays = list(arrays_in(leaf.runs if isinstance(leaf, InRuns) else leaf))
        timed = sliceable(leaf) or isinstance(leaf, _TIMED)
        shapes = [(*a.shape[:-2], None, *a.shape[-1:]) if timed else a.shape for a in arrays]
        found.append([Form(a.dtype, shape) for a, shape in zip(arrays, shapes, strict=True)])
    return found


def forms_made_by(model: Any, make: CacheFactory) -> Forms:
    """The forms of the caches that a model makes; what depends on their length may change."""
    one, other = (_after(model, make, count) for count in _LENGTHS)
    return [
        [form.or_also(also) for form, also in zip(ours, theirs, strict=True)]
        for ours, theirs in zip(one, other, strict=True)
    ]


def _after(model: Any, make: CacheFactory, count: int) -> Forms:
    caches = make()
    model(mx.zeros((1, count), mx.int32), cache=caches)
    return forms_of(caches)


class Layout:
    """What tells the KV of one model from that of any other, computed in its model's thread.

    ``make`` builds the empty caches of the model, one for each layer. ``model`` may be anything;
    what it does not tell is not checked.
    """

    def __init__(self, make: CacheFactory, model: Any) -> None:
        self.make = make
        self.kinds = kinds(make)
        self.digest = digest(model)
        self._model = model

    @cached_property
    def forms(self) -> Forms | None:
        """What arrays the model makes, if it can be asked."""
        return forms_made_by(self._model, self.make) if callable(self._model) else None
