"""The error tree, wherever its errors go."""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import mlxgen
from mlxgen.errors import MlxgenError, OptionError, RewindError

COPIES: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    *(lambda error, p=p: pickle.loads(pickle.dumps(error, p)) for p in range(2, 6)),
]


def tree(kind: type[MlxgenError] = MlxgenError) -> Iterator[type[MlxgenError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from tree(below)


def every_error() -> list[type[MlxgenError]]:
    for module in pkgutil.walk_packages(mlxgen.__path__, "mlxgen."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return [kind for kind in tree() if kind.__module__.startswith("mlxgen.")]


def made(kind: type[MlxgenError]) -> MlxgenError:
    """An error with something in each of its fields."""
    values: dict[str, Any] = {"int": 3, "int | None": 3, "str": "a word", "str | None": "a word"}
    args: list[Any] = []
    named: dict[str, Any] = {}
    if not inspect.isfunction(kind.__init__):  # as all exceptions are made
        args.append("the message")
    else:
        for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
            if parameter.kind is parameter.KEYWORD_ONLY:
                named[name] = values[parameter.annotation]
            else:
                args.append(values[parameter.annotation])
    error = kind(*args, **named)
    error.add_note("in prompts[2]")
    return error


def test_every_error_is_pickled_and_copied_with_its_fields() -> None:
    kinds = every_error()
    assert {OptionError, RewindError} < set(kinds) and len(kinds) > 15
    for kind, duplicate in itertools.product(kinds, COPIES):
        error = made(kind)
        again = duplicate(error)
        assert type(again) is kind
        assert str(again) == str(error) and again.args == error.args
        assert vars(again) == vars(error) and again.status == error.status
        assert again.__notes__ == ["in prompts[2]"]
