"""The values that an option may have: a number in a range, a flag, strings.

Owns the checks of single values and the wording of what is allowed. Must never know which options
there are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

from ..errors import OptionError

ABOVE_ZERO = math.ulp(0.0)
"""The low end of a range that leaves zero out."""
LOOPS = ("off", "stop", "take back")
"""The ways to deal with loops."""
DRAFTS = ("auto", "off", "ngram")
"""The sources of draft tokens, apart from a model."""
MAX_BIAS = 1e9
_SHOWN = 80  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Rule:
    """The default of an option, and the values that it may have.

    ``allowed`` describes these, to follow "expected". ``read`` converts a value to what the engine
    takes, or raises ``ValueError`` with what it got. ``low`` and ``high``: a number's range.
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
    read = partial(_integer, low=low, high=math.inf if high is None else high)
    return Rule(default, f"an integer {span}", read, low, high)


def one_of(*values: int) -> Rule:
    """One of these integers; there is no default."""
    *most, last = map(str, values)
    return Rule(None, f"{', '.join(most)} or {last}", lambda v: _only(whole(v), whole(v) in values))


def _number(value: Any, *, low: float, high: float) -> float:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return float(_only(value, is_number and low <= value <= high))


def _integer(value: Any, *, low: int, high: float) -> int:
    number = whole(value)
    return int(_only(number, low <= number <= high))


def whole(value: Any) -> int:
    """An integer."""
    is_whole = hasattr(value, "__index__") and not isinstance(value, bool)
    return int(_only(value, is_whole).__index__())


def seed(value: Any) -> int:
    """An integer, which other programs may write as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else whole(value)


def flag(value: Any) -> bool:
    """True or False itself, not another value that is truthy or falsy."""
    return bool(_only(value, isinstance(value, bool)))


def tokens(value: Any) -> tuple[int, ...]:
    """Token ids."""
    return tuple(map(whole, _items(value)))


def text_or_tokens(value: Any) -> str | tuple[int, ...]:
    """Text, or token ids."""
    if not isinstance(value, str):
        return tokens(value)
    value.encode()  # raises for a lone surrogate
    return value


def token_sequences(value: Any) -> tuple[tuple[int, ...], ...]:
    """Sequences of token ids, which may be single ids."""
    found = tuple(tokens([i] if hasattr(i, "__index__") else i) for i in _items(value))
    if not all(found):
        raise ValueError("an empty sequence, which matches everywhere")
    return found


def strings(value: Any, kinds: tuple[type, ...] = (str,)) -> tuple[Any, ...]:
    """One string, or several."""
    items = (value,) if isinstance(value, kinds) else _items(value, Collection)
    for item in items:
        _only(item, isinstance(item, kinds), " in it")
        if not item:
            raise ValueError("an empty string, which matches everywhere")
    return tuple(items)


def list_of_strings(value: Any) -> tuple[str, ...]:
    """A list of strings; a string alone is more likely a mistake."""
    return strings(_items(value, Collection))


def patterns(value: Any) -> tuple[Any, ...]:
    """One string or compiled expression, or several."""
    return strings(value, (str, re.Pattern))


def biases(value: Any) -> dict[int, float]:
    """A checked copy of the caller's mapping, which may change later."""
    found = {}
    for token, bias in _only(value, isinstance(value, Mapping)).items():
        if whole(token) < 0:
            raise ValueError(f"token {token}")
        try:
            found[whole(token)] = _number(bias, low=-MAX_BIAS, high=MAX_BIAS)
        except ValueError as error:
            raise ValueError(f"{error} for token {token}") from None
    return found


def filters(value: Any) -> tuple[Any, ...]:
    """One filter or specification, or several."""
    items = value if isinstance(value, (list, tuple)) else (value,)
    for item in items:
        _only(item, hasattr(item, "bind") or (hasattr(item, "fill") and hasattr(item, "advance")))
    return tuple(items)


def callables(value: Any) -> tuple[Any, ...]:
    """One function, or several."""
    items = (value,) if callable(value) else value
    return tuple(_only(items, isinstance(items, (list, tuple)) and all(map(callable, items))))


def loops(value: Any) -> str:
    """A way to deal with loops."""
    return str(_only(value, value in LOOPS))


def draft(value: Any) -> Any:
    """A source of draft tokens."""
    is_model = hasattr(value, "model") and hasattr(value, "vocabulary")
    return _only(value, is_model or value in DRAFTS)


def _items(value: Any, kind: type = Iterable) -> Any:
    return _only(value, isinstance(value, kind) and not isinstance(value, (str, bytes, Mapping)))


def _only(value: Any, allowed: Any, where: str = "") -> Any:
    """``value``; unless it is ``allowed``, ``ValueError`` with a short form of it."""
    if allowed:
        return value
    text = repr(value)
    raise ValueError((text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}...") + where)


def _written(value: Any) -> str:
    """A number without an exponent or needless zeros; any other value as Python writes it."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return repr(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"
