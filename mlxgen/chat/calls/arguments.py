"""The arguments of a tool call, as JSON text that grows with the model's own text.

Here is what all ways of writing arguments share, and the plain one: JSON, which is passed on as it
is. Invariant: the JSON text does not depend on the pieces in which the model's text comes. If the
model keeps to its format, it is what mlx-lm's parser makes of the whole; what a call gives that is
cut off is the beginning of that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

Tool: TypeAlias = Mapping[str, Any]
Parse: TypeAlias = Callable[[str, Any], Any]


class Growth(NamedTuple):
    """``taken`` characters of the model's text gave ``more`` JSON text; ``ended``: all of it."""

    taken: int
    more: str
    ended: bool = False


class Arguments(Protocol):
    """Reads the arguments of one call. Text that it did not take is given again, with more."""

    def take(self, text: str) -> Growth:
        """Takes the part of the text that is certain."""


ArgumentFormat: TypeAlias = Callable[[Tool, Parse, str], Arguments]
"""A way of writing arguments: what reads those of a call of this tool, which the text ends at the
latest. The parser is mlx-lm's, of whole calls."""


class JsonArguments:
    """Arguments that are already a JSON object; they end with it, or at one of ``stops`` or ``end``
    outside its strings."""

    _INSIDE = re.compile(r'["\\]')

    def __init__(self, tool: Tool, parse: Parse, end: str, *, stops: tuple[str, ...] = ()) -> None:
        self._stops = tuple(stop for stop in (*stops, end) if stop)
        firsts = "".join(sorted({re.escape(stop[0]) for stop in self._stops}))
        self._outside = re.compile(rf'["{{}}\[\]{firsts}]')
        self._depth = 0
        self._quoted = False

    def take(self, text: str) -> Growth:
        at = 0
        while at < len(text):
            mark = (self._INSIDE if self._quoted else self._outside).search(text, at)
            if mark is None:
                break
            start, at = mark.span()
            if mark[0] == '"':
                self._quoted = not self._quoted
            elif self._quoted:  # a backslash, and what it escapes
                if at == len(text):
                    return Growth(start, text[:start])
                at += 1
            elif mark[0] in "{[":
                self._depth += 1
            elif mark[0] in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return Growth(at, text[:at], ended=True)
            elif any(text.startswith(stop, start) for stop in self._stops):
                return Growth(start, text[:start], ended=True)
            elif any(stop.startswith(text[start:]) for stop in self._stops):
                return Growth(start, text[:start])
        return Growth(len(text), text)


def dumped(value: Any) -> str:
    """A value as JSON text that can be encoded. ``ValueError`` or ``TypeError`` if it has none."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can spell
        return json.dumps(value, allow_nan=False)
    return text


def escaped(text: str) -> str:
    """Text as a part of a JSON string."""
    return dumped(text)[1:-1]
