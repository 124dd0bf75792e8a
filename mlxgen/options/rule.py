"""What the value of an option may be: a number in a range, a flag, strings.

Owns the checks of single values and the words for what is allowed. Must never know which
options there are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, cast

from ..errors import OptionError

ABOVE_ZERO = math.ulp(0.0)
"""The low end of a range that leaves zero out."""
LOOPS = ("off", "stop", "take back")
"""What may be done about loops."""
DRAFTS = ("auto", "off", "ngram")
"""What may propose tokens, apart from a model."""
MAX_BIAS = 1e9
_SHOWN = 80  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Rule:
    """The default of an option, and what it may be.

    ``allowed`` says so in words, after "expected". ``read`` makes of a value what the engine
    takes, or raises ``ValueError`` with what it got. ``low`` and ``high`` are a number's range.
    """

    default: Any
    allowed: str
    read: Callable[[Any], Any]
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return f"{self.allowed[0].upper()}{self.allowed[1:]}; default {self.usually}."

    @property
    def usually(self) -> str:
        """The default, in words."""
        return "none" if self.default in ((), {}) else _written(self.default)

    def check(self, name: str, value: Any) -> Any:
        """The value as the engine takes it; raises ``OptionError`` if it is not allowed."""
        try:
            return self.read(value)
        except ValueError as error:
            raise OptionError(name, f"expected {self.allowed}, got {error}") from None


def number(default: float, low: float, high: float) -> Rule:
    """A finite number from ``low`` to ``high``."""
    span = f"from {_written(low)} to" if low != ABOVE_ZERO else "above 0 and at most"
    read = partial(_number, low=low, high=high)
    return Rule(float(default), f"a number {span} {_written(high)}", read, low, high)


def integer(default: int | None, low: int, high: int | None = None) -> Rule:
    """An integer from ``low`` to ``high``."""
    least = _written(low)
    span = f"of at least {least}" if high is None else f"from {least} to {_written(high)}"
    read = partial(_integer, low=low, high=high)
    return Rule(default, f"an integer {span}", read, low, high)


def one_of(*values: int) -> Rule:
    """One of these integers; there is no default."""

    def read(value: Any) -> int:
        number = whole(value)
        if number not in values:
            raise ValueError(repr(number))
        return number

    *most, last = map(str, values)
    return Rule(None, f"{', '.join(most)} or {last}", read)


def _number(value: Any, *, low: float, high: float) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not low <= cast(float, value) <= high
    ):
        raise ValueError(_shown(value))
    return float(value)


def _integer(value: Any, *, low: int, high: int | None) -> int:
    number = whole(value)
    if number < low or (high is not None and number > high):
        raise ValueError(_shown(value))
    return number


def whole(value: Any) -> int:
    """An integer."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(_shown(value))
    return int(value.__index__())


def seed(value: Any) -> int:
    """An integer, which other programs may write as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else whole(value)


def flag(value: Any) -> bool:
    """True or False, and nothing that is only like them."""
    if not isinstance(value, bool):
        raise ValueError(_shown(value))
    return value


def tokens(value: Any) -> tuple[int, ...]:
    """Token ids."""
    return tuple(whole(item) for item in _items(value))


def text_or_tokens(value: Any) -> str | tuple[int, ...]:
    """Text, or token ids."""
    if not isinstance(value, str):
        return tokens(value)
    value.encode()  # raises for half a character
    return value


def token_sequences(value: Any) -> tuple[tuple[int, ...], ...]:
    """Sequences of token ids, which may be single ids."""
    items = _items(value)
    found = tuple((whole(i),) if hasattr(i, "__index__") else tokens(i) for i in items)
    if not all(found):
        raise ValueError("an empty sequence, which matches everywhere")
    return found


def strings(value: Any, kinds: tuple[type, ...] = (str,)) -> tuple[Any, ...]:
    """Strings, or one of them."""
    items = (value,) if isinstance(value, kinds) else _items(value, Collection)
    for item in items:
        if not isinstance(item, kinds):
            raise ValueError(f"{_shown(item)} in it")
        if not item:
            raise ValueError("an empty string, which matches everywhere")
    return tuple(items)


def list_of_strings(value: Any) -> tuple[str, ...]:
    """Strings; one alone is more likely a mistake."""
    return strings(_items(value, Collection))


def patterns(value: Any) -> tuple[Any, ...]:
    """Strings and compiled expressions, or one of them."""
    return strings(value, (str, re.Pattern))


def biases(value: Any) -> dict[int, float]:
    """A copy of the caller's mapping, which may change later."""
    if not isinstance(value, Mapping):
        raise ValueError(_shown(value))
    found = {}
    for token, bias in value.items():
        if whole(token) < 0:
            raise ValueError(f"token {token}")
        try:
            found[whole(token)] = _number(bias, low=-MAX_BIAS, high=MAX_BIAS)
        except ValueError as error:
            raise ValueError(f"{error} for token {token}") from None
    return found


def filters(value: Any) -> tuple[Any, ...]:
    """Filters and specifications, or one of them."""
    items = value if isinstance(value, (list, tuple)) else (value,)
    for item in items:
        if not hasattr(item, "bind") and not (hasattr(item, "fill") and hasattr(item, "advance")):
            raise ValueError(_shown(item))
    return tuple(items)


def callables(value: Any) -> tuple[Any, ...]:
    """Functions, or one of them."""
    items = (value,) if callable(value) else value
    if not isinstance(items, (list, tuple)) or not all(map(callable, items)):
        raise ValueError(_shown(value))
    return tuple(items)


def loops(value: Any) -> str:
    """What is done about loops."""
    if value in LOOPS:
        return str(value)
    raise ValueError(_shown(value))


def draft(value: Any) -> Any:
    """What proposes tokens."""
    if value in DRAFTS or (hasattr(value, "model") and hasattr(value, "vocabulary")):
        return value
    raise ValueError(_shown(value))


def _items(value: Any, kind: type = Iterable) -> Any:
    if not isinstance(value, kind) or isinstance(value, (str, bytes, Mapping)):
        raise ValueError(_shown(value))
    return value


def _shown(value: Any) -> str:
    """A value for a message, short."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _written(value: Any) -> str:
    """A number without an exponent or needless zeros; any other value as Python writes it."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return repr(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"
