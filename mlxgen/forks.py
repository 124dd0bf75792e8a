"""Independent copies of parts, field by field.

Law 3: neither copy can see what the other does. So a field is shared only if its value cannot
change, or if its class says by name that both may use it; a field of any other kind that nobody
thought of is an error.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Iterator
from enum import Enum
from types import FunctionType, MappingProxyType, MethodType, NoneType
from typing import Any, TypeVar

T = TypeVar("T")

_VALUES = (NoneType, bool, int, float, str, bytes, tuple, frozenset, Enum, MappingProxyType)
_CALLABLES = (FunctionType, type)
_COPIED = (list, dict, set, deque)


def forked(thing: T, *, shared: Collection[str] = (), **given: Any) -> T:
    """An independent copy of ``thing``.

    A field is replaced if it is ``given``; it stays the same object if it is named in ``shared``
    or is a plain value; what has a ``fork`` is forked, and a list, dictionary, set or deque is
    copied. The items of containers are shared: give a field whose items change. TypeError, with
    the name of the field, for anything else.
    """
    twin = copy.copy(thing)
    for name in _names(thing):
        if name in given:
            object.__setattr__(twin, name, given[name])
        elif name not in shared:
            object.__setattr__(twin, name, _copied(thing, name))
    return twin


def _names(thing: object) -> Iterator[str]:
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(thing, name) and name not in ("__dict__", "__weakref__"):
                yield name
    yield from getattr(thing, "__dict__", ())


def _copied(thing: object, name: str) -> Any:
    value = getattr(thing, name)
    if isinstance(value, _CALLABLES):
        return value
    fork = getattr(value, "fork", None)
    if isinstance(fork, MethodType):
        return fork()
    if isinstance(value, _VALUES) or _is_frozen(value):
        return value
    if isinstance(value, _COPIED):
        return value.copy()
    raise TypeError(
        f"{type(thing).__name__}.{name} is a {type(value).__name__}: its fork has to say whether "
        "both copies may use it"
    )


def _is_frozen(value: object) -> bool:
    parameters = getattr(value, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)
