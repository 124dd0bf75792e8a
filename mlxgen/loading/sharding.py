"""The part of a model that one of several machines runs.

Owns the way in which mlx-lm divides an architecture, and every check that it divides it evenly.
Must never know how machines talk to each other: a group is only asked for its size and its rank.
Invariant: a returned part computes, together with the others, what the whole model does.

*Tensor* parallel: every machine has all layers, and a part of the heads and of the hidden units of
each. *Pipeline*: every machine has some of the layers, whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from . import mlx_lm_first  # noqa: F401

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..errors import UnsupportedModelError, failing
from .checkpoint import read_json

Group: TypeAlias = Any  # mx.distributed.Group, or whatever has its ``rank()`` and ``size()``
Kind: TypeAlias = Literal["tensor", "pipeline"]

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# Layers that mlx-lm replaces by its own; it would replace anything that has such parameters.
_REPLACED = (nn.Linear, nn.QuantizedLinear, nn.RMSNorm)
_ADVICE = "load it on one machine or another number of them, or load another model"


@dataclass(frozen=True, slots=True)
class Split:
    """Which part of a model this is: number ``rank`` of ``size``."""

    kind: Kind
    rank: int
    size: int

    @classmethod
    def of(cls, model: Any, group: Group) -> Split:
        """How ``model`` is divided among a group: by tensors if mlx-lm can do that, else by layers.

        Raises ``UnsupportedModelError`` if mlx-lm can do neither.
        """
        if hasattr(model, "shard"):
            return cls("tensor", group.rank(), group.size())
        if hasattr(getattr(model, "model", None), "pipeline"):
            return cls("pipeline", group.rank(), group.size())
        raise UnsupportedModelError(
            f"mlx-lm cannot divide the architecture {_name(model)!r} among machines: its Model in"
            " mlx_lm.models has no method shard (those of llama, qwen3 and gpt_oss, for example,"
            f" have one), and no pipeline; load it on one machine, or load another model"
        )

    @classmethod
    def had(cls, model: Any) -> Split | None:
        """The part that a model already is; ``None`` for a whole one."""
        for module in model.modules() if isinstance(model, nn.Module) else ():
            known = vars(module)
            if known.get("pipeline_size", 1) > 1:
                return cls("pipeline", known["pipeline_rank"], known["pipeline_size"])
            for value in known.values():
                if isinstance(value, mx.distributed.Group):
                    return cls("tensor", value.rank(), value.size())
        return None

    def __str__(self) -> str:
        return f"part {self.rank + 1} of {self.size} ({self.kind} parallel)"

    def cut(self, model: Any, group: Group) -> None:
        """Leave only this part of a model; nothing is evaluated.

        Raises ``UnsupportedModelError`` if it cannot be divided evenly.
        """
        cannot = f"mlx-lm cannot divide this {_name(model)} model among {self.size} machines"
        with failing(UnsupportedModelError, f"{cannot} ({_ADVICE})"):
            if self.kind == "tensor":
                self._shard(model, group)
            elif model.model.pipeline_size == 1:
                model.model.pipeline(group)

    def _shard(self, model: Any, group: Group) -> None:
        """Let mlx-lm cut a model, and check for wrong cuts that raise no error."""
        modules = dict(model.named_modules())
        numbers, shapes = list(_numbers_in(model)), _shapes_in(model)
        try:
            model.shard(group)
        finally:  # mlx-lm's own errors may come from this
            for module, name, number in numbers:
                after = vars(module).get(name)
                # Unchanged, divided evenly, or down to one head, which several machines have
                one = after == 1 and self.size % number == 0
                if after not in (number, number / self.size) and not one:
                    raise ValueError(f"{name} is {number}, which is not a multiple of {self.size}")
        for path, module in model.named_modules():
            old = modules.get(path, module)
            if old is not module and type(old) not in _REPLACED:
                raise ValueError(f"{path} is a {type(old).__name__}")
        for path, shape in _shapes_in(model).items():
            before = shapes.get(path, shape)
            # A scale for each expert is cut like a bias, but each machine has all experts.
            scale = path.endswith(".global_scale")
            if math.prod(before) % max(1, math.prod(shape)) or (scale and shape != before):
                raise ValueError(f"{path} of shape {before} would be cut wrongly")

    def taken(self, model: Any, group: Group, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """The weights that this part of a model takes as it is loaded. For layers, the model is cut
        here, and takes those of its own; tensors are cut later."""
        if self.kind == "tensor":
            return weights
        self.cut(model, group)
        own = _shapes_in(model)
        return {n: array for n, array in weights.items() if n in own or not _LAYER.search(n)}

    def files(self, model: Any, index: Path) -> Collection[str] | None:
        """The names of the weight files that a part needs, from the index of a checkpoint; ``None``
        for all. ``model`` has been cut."""
        promised = read_json(index).get("weight_map") if index.is_file() else None
        if self.kind == "tensor" or not isinstance(promised, dict):
            return None
        start, end = model.model.start_idx, model.model.end_idx
        layers = {name: _LAYER.search(name) for name in promised}
        return {
            str(file)
            for name, file in promised.items()
            if (found := layers[name]) is None or start <= int(found[1]) < end
        }


def _name(model: Any) -> str:
    """The architecture, as mlx-lm calls it."""
    return type(model).__module__.rpartition(".")[2]


def _numbers_in(model: nn.Module) -> Iterator[tuple[nn.Module, str, int]]:
    """The whole numbers that modules have, such as how many heads there are."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                yield module, name, value


def _shapes_in(model: nn.Module) -> dict[str, tuple[int, ...]]:
    named = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    return {name: tuple(array.shape) for name, array in named if isinstance(array, mx.array)}
