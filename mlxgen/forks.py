"""Independent copies of parts, field by field, and the base of parts that keep a list of steps.

Law 3: neither copy can see what the other does. So a field is shared only if its value cannot
change, or if its class says by name that both may use it. Any other field that does not know how to
be copied is an error, so that none is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from enum import Enum
from functools import cache
from types import FunctionType, MappingProxyType, MethodType, NoneType
from typing import Any, ClassVar, Generic, Self, TypeVar

from .errors import RewindError

T = TypeVar("T")
S = TypeVar("S")

_VALUES = (
    *(NoneType, bool, int, float, str, bytes, tuple, frozenset),
    *(Enum, MappingProxyType, FunctionType, type),
)
_COPIED = (list, dict, set, deque)
_UNSET = object()


def forked(thing: T, *, shared: Collection[str] = (), **given: Any) -> T:
    """An independent copy of ``thing``.

    A field is replaced if it is ``given``; it stays the same object if it is named in ``shared`` or
    is a plain value; anything with a ``fork`` is forked, and a list, dictionary, set or deque is
    copied. The items of containers are shared: pass a field with items that change in ``given``.
    TypeError, with the name of the field, for anything else.
    """
    kind: Any = type(thing)
    twin: T = object.__new__(kind)
    for name in (*_slots(kind), *getattr(thing, "__dict__", ())):
        value = given[name] if name in given else getattr(thing, name, _UNSET)
        if value is _UNSET:
            continue
        if name not in given and name not in shared and type(value) not in _VALUES:
            value = _copied(thing, name, value)
        object.__setattr__(twin, name, value)
    return twin


@cache
def _slots(kind: type) -> Sequence[str]:
    found: list[str] = []
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _copied(thing: object, name: str, value: Any) -> Any:
    if type(value) in _COPIED:
        return value.copy()
    if isinstance(getattr(value, "fork", None), MethodType):
        return value.fork()
    kind: Any = type(value)
    if isinstance(value, _VALUES) or _is_frozen(kind):
        return value
    if isinstance(value, _COPIED):
        return value.copy()
    raise TypeError(
        f"{type(thing).__name__}.{name} is a {type(value).__name__}: its fork has to say whether "
        "both copies may use it"
    )


@cache
def _is_frozen(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


class Steps(Generic[S]):
    """The base of parts whose whole state is a list: the state at first, and after each step.

    ``_TABLES``: the fields that never change, which copies share.
    """

    __slots__ = ("_steps",)

    _TABLES: ClassVar[tuple[str, ...]] = ()

    def __init__(self, first: S) -> None:
        self._steps = [first]

    def __len__(self) -> int:
        """Steps so far."""
        return len(self._steps) - 1

    def rewind(self, to: int) -> None:
        """Goes back to ``to`` steps; does nothing if there are no more than that."""
        if to < 0:
            raise RewindError(f"cannot rewind to {to} steps", possible=len(self))
        del self._steps[to + 1 :]

    def fork(self) -> Self:
        """An independent copy."""
        return forked(self, shared=self._TABLES)
