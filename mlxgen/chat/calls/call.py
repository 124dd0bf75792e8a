"""A call that is being read, and its arguments as JSON text that grows.

Invariant: only one of the offered tools is called, and each argument has the type that the tool's
schema says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from .schema import Schema, grows, of_text, properties_of, property_of, settled
from .values import BrokenError, Source, Waiting, compiled, dumped, escaped

Tool: TypeAlias = Mapping[str, Any]

HELD = 64  # characters of a string before it is passed on while it grows
_AFFIXES = re.compile(r"^(?:functions?|tools?)[._:/]|[:._][0-9]+$|\.call$")
_NAMESPACES = re.compile(r"[.:/]")
_SEPARATORS = re.compile(r"[-_.:/\s]+")
_NUMBERED = re.compile(r"(?:(?:call|functions?|tool)[._:]?)?[0-9]+")


class ToolCall(NamedTuple):
    """A function and its arguments as JSON text; ``id`` if the model gave one."""

    name: str
    arguments: str
    id: str | None = None


class Offered(dict[str, Schema]):
    """The tools that may be called, with the schemas of their arguments."""

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> Offered:
        functions = [tool["function"] for tool in tools]
        return cls((each["name"], each.get("parameters") or {}) for each in functions)

    def meant(self, name: str) -> str:
        """The one tool that a name can mean. ``BrokenError`` if there is none, or more."""
        bare: str = _AFFIXES.sub("", name)
        for wanted in (name, bare, _NAMESPACES.split(bare)[-1]):
            if wanted in self:
                return wanted
            found = [known for known in self if _plain(known) == _plain(wanted)]
            if len(found) == 1:
                return found[0]
        if len(self) == 1 and _NUMBERED.fullmatch(name):
            return next(iter(self))
        raise BrokenError(f"there is no tool {name[:40]!r}")


def _plain(name: str) -> str:
    return _SEPARATORS.sub("_", name).strip("_").lower()


class Marks(NamedTuple):
    """Patterns of what may come around a call: marks with which calls begin, those with which they
    end, and these and other calls together."""

    starts: str
    ends: str
    borders: str


class Arguments:
    """The arguments of a call; see ``values.Fields``."""

    def __init__(self, schema: Any, source: Source) -> None:
        self._schema = schema
        self._source = source
        self.known = [*properties_of(schema, schema)]  # the names of those in the schema
        self._given: set[str] = set()
        self._parts: list[str] = []
        self._growing = 0  # characters of the string that grows, with its key
        self.is_long = False  # whether a string was so long that it has to be passed on

    @property
    def missing(self) -> Sequence[str]:
        """The known ones that were not given so far, not even in part."""
        return [key for key in self.known if key not in self._given]

    def begin(self, key: str, *, quoted: bool = True) -> Callable[[str], None] | None:
        self._growing = 0
        schema = property_of(self._schema, key, self._schema)
        return self._grow_of(key) if grows(schema, self._schema, quoted=quoted) else None

    def _grow_of(self, key: str) -> Callable[[str], None]:
        def grow(text: str) -> None:
            if not self._growing:
                self._parts.append(f'{self._named(key)}"')
            self._parts.append(escaped(text))
            self._growing += len(text)
            if self._growing >= HELD:
                self.is_long, self._source.limit = True, math.inf

        return grow

    def end(self, key: str, value: Any, *, quoted: bool = True) -> None:
        if self._growing:
            self._growing = 0
            self._parts.append('"')
            return
        schema = property_of(self._schema, key, self._schema)
        if quoted or not isinstance(value, str):
            value = settled(value, schema, self._schema)
        else:
            value = of_text(value, schema, self._schema)
        self._parts.append(self._named(key) + dumped(value))

    def _named(self, key: str) -> str:
        comma = ", " if self._given else "{"
        self._given.add(key)
        return f"{comma}{dumped(key)}: "

    def close(self) -> None:
        """All of them are there, as far as they will be."""
        if self._growing:
            self._growing = 0
            self._parts.append('"')
        self._parts.append("}" if self._given else "{}")

    @property
    def text(self) -> str:
        """What is new in their text."""
        return "".join(self._parts)

    def take(self) -> str:
        """What is new in their text, once."""
        more, self._parts = self.text, []
        return more


class Call:
    """A call that is read from a source.

    ``name`` is the tool's, once it is known. ``place`` is where the call ends, ``is_begun`` whether
    it was passed on, and ``is_broken`` whether it broke after that.
    """

    def __init__(self, source: Source, offered: Offered, marks: Marks) -> None:
        self.source = source
        self.marks = marks
        self._offered = offered
        self.name: str | None = None
        self.id: str | None = None
        self.given = Arguments({}, source)
        self.place = 0
        self.is_begun = self.is_broken = False

    def named(self, name: str, id: str | None = None) -> None:
        """Its tool is the one that the name can mean. ``BrokenError`` if there is no such tool."""
        self.name = self._offered.meant(name)
        self.given = Arguments(self._offered[self.name], self.source)
        self.id = id if id and ":" in id else self.id

    def ends(self, place: int) -> Waiting[bool]:
        """Whether the call, or the text, ends at a place."""
        place = yield from self.source.space(place)
        if place >= len(self.source.text):
            return self.source.final
        match = yield from self.source.match(compiled(self.marks.borders), place)
        return match is not None and not match.partial

    @property
    def is_long(self) -> bool:
        """Whether it has to be passed on before its end."""
        return self.given.is_long

    def read(self, reading: Waiting[int]) -> Waiting[None]:
        """Reads it to its end; ``BrokenError`` if it is no call."""
        try:
            self.place = yield from reading
        except BrokenError:
            if not self.is_long:
                raise
            self.place, self.is_broken = self.source.kept, True
        self.given.close()
