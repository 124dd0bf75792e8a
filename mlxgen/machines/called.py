"""A part of a model is called by all ranks together, or by none.

If a program called it on rank 0 alone, the sums in it would never be done.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import MachineError


def forbid_calls(model: Any) -> None:
    """Have calls of a part of a model fail, but for those of ``Called``."""
    kind = type(model)

    def refuse(self: Any, *args: Any, **options: Any) -> NoReturn:
        raise MachineError(
            "only a part of this model is on this machine, and the others take no part in a call"
            " of it; generate with its LanguageModel, or load it with distributed=False"
        )

    own = {"__call__": refuse, "__module__": kind.__module__, "called": kind.__call__}
    model.__class__ = type(kind.__name__, (kind,), own)


class Called:
    """A part of a model, for those who have all ranks call it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._call = getattr(type(model), "called", type(model).__call__)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._call(self._model, *args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
