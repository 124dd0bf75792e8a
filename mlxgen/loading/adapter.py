"""Adapters that mlx-lm trained, and how they are added to a model.

Owns the copy of a model that an adapter is added to. The copy has modules of its own and shares
every array, so it takes no memory but the adapter's. Invariant: the model itself stays as it is,
whatever happens to the copy, and every tensor of an adapter is in its place.
"""

from __future__ import annotations

from pathlib import Path
from types import MethodType
from typing import Any, cast

from . import mlx_lm_first  # noqa: F401

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils
from mlx.utils import tree_flatten, tree_unflatten

from ..errors import AdapterError, failing
from .checkpoint import tensors_in
from .sharding import Split

_LEAVES = ("lora_a", "lora_b", "m")


def adapted(model: Any, folder: Path) -> Any:
    """A copy of a model with an adapter, whose arrays are not evaluated yet.

    ``folder`` has passed ``check_adapter``. Raises ``AdapterError`` if the adapter does not fit.
    """
    unfit = f"the adapter {folder} does not fit the model"
    if not isinstance(model, nn.Module):
        raise AdapterError(f"{unfit}: expected a module of MLX, got {type(model).__name__}")
    if Split.had(model) is not None:
        raise AdapterError(
            f"the adapter {folder} cannot be added to a model that is on several machines already;"
            " load the model with it"
        )
    before = _names(model)
    if any(_leaf(name) in _LEAVES[:2] for name in before):
        raise AdapterError(f"{unfit}, which has an adapter already; use the model without it")
    with failing(AdapterError, unfit):
        twin = mlx_lm.utils.load_adapters(_twin(model, {}), str(folder))
    twin.eval()
    new = {name for name in _names(twin) - before if _leaf(name) in _LEAVES}
    if missing := sorted(new - tensors_in(folder / "adapters.safetensors").keys()):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise AdapterError(f"{unfit}: {missing[0]} is missing{more}")
    return twin


def fused(model: Any, folder: Path) -> Any:
    """A model from ``adapted``, with its adapter merged into the weights, lazily.

    Raises ``AdapterError`` if these are quantised, since they would have to be quantised again.
    """
    layers = [(path, part) for path, part in model.named_modules() if hasattr(part, "fuse")]
    for path, part in layers:
        inner = getattr(part, "linear", None) or part.embedding
        if hasattr(inner, "bits"):
            raise AdapterError(
                f"the adapter {folder} cannot be used with the quantised weights of a model on"
                f" several machines ({path}); pass what mlx_lm.fuse makes of the two as the model"
            )
    with failing(AdapterError, f"the adapter {folder} cannot be added to the weights"):
        model.update_modules(tree_unflatten([(path, part.fuse()) for path, part in layers]))
    return model


def _leaf(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _names(model: nn.Module) -> set[str]:
    return {name for name, _ in cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))}


def _twin(value: Any, known: dict[int, Any]) -> Any:
    """A copy of modules and of the containers that hold them; all else is shared. ``known``: the
    copies so far, by the ids of the originals."""
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, nn.Module):
        twin = known[id(value)] = type(value).__new__(type(value))
        for name, item in value.items():
            dict.__setitem__(twin, name, _twin(item, known))
        vars(twin).update({name: _twin(item, known) for name, item in vars(value).items()})
        return twin
    if type(value) in (list, tuple):
        return type(value)(_twin(item, known) for item in value)
    if type(value) is dict:
        return {name: _twin(item, known) for name, item in value.items()}
    if type(value) is set:
        return set(value)
    owner = getattr(value, "__self__", None)
    if isinstance(owner, nn.Module):  # a method, or a compiled one
        method = MethodType(value.__func__, _twin(owner, known))
        return method if isinstance(value, MethodType) else mx.compile(method)
    return value
