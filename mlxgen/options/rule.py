"""What the value of an option may be: a number in a range, a flag, a list of strings.

Owns the checks of single values and the words for what is allowed. Must never know which
options there are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

from ..errors import OptionError

_SHOWN = 80  # characters of a value in a message


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """A finite number from ``low`` to ``high``; a ``low`` of ``ABOVE_ZERO`` is excluded."""
    span = f"from {_written(low)} to" if low != ABOVE_ZERO else "above 0 and at most"
    read = partial(_number, low=low, high=high)
    allowed = f"a number {span} {_written(high)}"
    return Rule(default=float(default), allowed=allowed, read=read, low=low, high=high)


ABOVE_ZERO = math.ulp(0.0)


def integer(default: int | None, low: int | None = None, high: int | None = None) -> Rule:
    """An integer; also ``None`` if that is the default."""
    allowed = "an integer"
    if high is not None:
        allowed = f"an integer from {_written(low)} to {_written(high)}"
    elif low is not None:
        allowed = f"an integer of at least {_written(low)}"
    read = partial(_integer, low=low, high=high)
    return Rule(default=default, allowed=allowed, read=read, low=low, high=high)


def seed() -> Rule:
    """Any integer, also as a float that is whole."""
    return Rule(default=None, allowed="an integer", read=_seed)


def flag() -> Rule:
    """True or False, which is the default."""
    return Rule(default=False, allowed="True or False", read=_flag)


def tokens() -> Rule:
    """Token ids."""
    return Rule(default=(), allowed="a list of token ids", read=_tokens)


def token_sequences() -> Rule:
    """Token ids, each alone or in a sequence."""
    allowed = "a list of token ids or of lists of them"
    return Rule(default=(), allowed=allowed, read=_token_sequences)


def strings(*, or_expressions: bool = False) -> Rule:
    """Strings, or one of them."""
    kind = (str, re.Pattern) if or_expressions else (str,)
    allowed = "a string or a list of strings"
    if or_expressions:
        allowed = "a string, a compiled regular expression or a list of these"
    return Rule(default=(), allowed=allowed, read=partial(_strings, kind=kind))


def biases(most: float) -> Rule:
    """Numbers from ``-most`` to ``most`` by token id."""
    allowed = f"a mapping from token ids to numbers from {_written(-most)} to {_written(most)}"
    return Rule(default={}, allowed=allowed, read=partial(_biases, most=most))


def filters() -> Rule:
    """Filters and specifications, or one of them."""
    allowed = "a filter or a list of filters, such as JsonSchema(schema) or Regex(pattern)"
    return Rule(default=(), allowed=allowed, read=_filters)


def callables() -> Rule:
    """Functions, or one of them."""
    return Rule(default=(), allowed="a callable or a list of callables", read=_callables)


def draft() -> Rule:
    """What proposes tokens."""
    return Rule(default=None, allowed='a LanguageModel, "ngram" or "off"', read=_draft)


# ---- reading ----


def _number(value: Any, *, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(_shown(value))
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(_shown(value)) from None
    if not low <= number <= high:  # nor is NaN
        raise ValueError(_shown(value))
    return number


def _integer(value: Any, *, low: int | None, high: int | None) -> int:
    number = _index(value)
    if (low is not None and number < low) or (high is not None and number > high):
        raise ValueError(_shown(value))
    return number


def _index(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(_shown(value))
    return int(value.__index__())


def _seed(value: Any) -> int:
    return int(value) if isinstance(value, float) and value.is_integer() else _index(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(_shown(value))
    return value


def _tokens(value: Any) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise ValueError(_shown(value))
    return tuple(_index(item) for item in value)


def _token_sequences(value: Any) -> tuple[tuple[int, ...], ...]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise ValueError(_shown(value))
    found = tuple((_index(i),) if hasattr(i, "__index__") else _tokens(i) for i in value)
    if not all(found):
        raise ValueError("an empty sequence, which matches everywhere")
    return found


def _strings(value: Any, *, kind: tuple[type, ...]) -> tuple[Any, ...]:
    items = (value,) if isinstance(value, kind) else value
    if not isinstance(items, Collection) or isinstance(items, (bytes, Mapping)):
        raise ValueError(_shown(value))
    for item in items:
        if not isinstance(item, kind):
            raise ValueError(f"{_shown(item)} in it")
        if not item:
            raise ValueError("an empty string, which matches everywhere")
    return tuple(items)


def _biases(value: Any, *, most: float) -> dict[int, float]:
    """A copy of the caller's mapping, which may change later."""
    if not isinstance(value, Mapping):
        raise ValueError(_shown(value))
    found = {}
    for token, bias in value.items():
        if isinstance(token, bool) or not hasattr(token, "__index__") or token < 0:
            raise ValueError(f"{_shown(token)} for a token id")
        try:
            found[int(token)] = _number(bias, low=-most, high=most)
        except ValueError as error:
            raise ValueError(f"{error} for token {token}") from None
    return found


def _filters(value: Any) -> tuple[Any, ...]:
    items = value if isinstance(value, (list, tuple)) else (value,)
    for item in items:
        if not hasattr(item, "bind") and not (hasattr(item, "fill") and hasattr(item, "advance")):
            raise ValueError(_shown(item))
    return tuple(items)


def _callables(value: Any) -> tuple[Any, ...]:
    items = (value,) if callable(value) else value
    if not isinstance(items, (list, tuple)) or not all(map(callable, items)):
        raise ValueError(_shown(value))
    return tuple(items)


def _draft(value: Any) -> Any:
    if value in ("ngram", "off") or (hasattr(value, "model") and hasattr(value, "vocabulary")):
        return value
    raise ValueError(_shown(value))


# ---- words ----


def _shown(value: Any) -> str:
    """A value for a message, short."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _written(value: Any) -> str:
    """A number without an exponent or needless zeros; any other value as Python writes it."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:,.10g}" if plain else repr(value)
