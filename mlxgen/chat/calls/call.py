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
from .values import BrokenError, Source, Waiting, dumped, escaped, literal

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
    end, how calls begin between them, and what may come after one: its end, or another."""

    starts: str
    ends: str
    begins: str
    borders: str


class Call:
    """A call that is read from a source, and its arguments as ``values.Fields`` take them.

    ``name`` is the tool's, once it is known, and ``known`` are the arguments in its schema.
    ``place`` is where the call ends, ``is_begun`` whether it was passed on, ``is_broken`` whether
    it broke after that, and ``is_long`` whether it has to be passed on before its end.
    """

    over = "(?!)"

    def __init__(self, source: Source, offered: Offered, marks: Marks) -> None:
        self.source = source
        self.marks = marks
        self.ends = rf"\s*(?:{marks.borders}|{{end}})"  # what follows it
        self.follow = self.after_string("}")
        self.name: str | None = None
        self.id: str | None = None
        self.place = 0
        self.is_begun = self.is_broken = self.is_long = False
        self._offered = offered
        self._schema: Any = {}
        self.known: Sequence[str] = ()
        self._given: set[str] = set()
        self._parts: list[str] = []
        self._growing = 0  # characters of the string that grows

    def after_string(self, close: str, ended: str = "") -> str:
        """What comes after a string that is an argument: another one, the bracket that closes all
        of them, perhaps as ``ended`` has it, or what follows the call."""
        close = re.escape(close)
        key = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[\w$.-]+)\s*[:=]"""
        return rf"\s*(?:,\s*(?:{key}|{close})|{ended or close}|{self.marks.borders}|{{end}})"

    def named(self, name: str, id: str | None = None) -> None:
        """Its tool is the one that the name can mean. ``BrokenError`` if there is no such tool."""
        self.name = self._offered.meant(name)
        self._schema = self._offered[self.name]
        self.known = [*properties_of(self._schema, self._schema)]
        self.id = id if id and ":" in id else self.id

    @property
    def missing(self) -> Sequence[str]:
        """The known arguments that were not given so far, not even in part."""
        return [key for key in self.known if key not in self._given]

    def begin(self, key: str, *, quoted: bool = True) -> Callable[[str], None] | None:
        self._growing = 0
        schema = property_of(self._schema, key, self._schema)

        def grow(text: str) -> None:
            if not self._growing:
                self._parts.append(f'{self._named(key)}"')
            self._parts.append(escaped(text))
            self._growing += len(text)
            if self._growing >= HELD:
                self.is_long, self.source.limit = True, math.inf

        return grow if grows(schema, self._schema, quoted=quoted) else None

    def end(self, key: str, value: Any, *, quoted: bool = True) -> None:
        if self._growing:
            self._growing = 0
            self._parts.append('"')
            return
        schema = property_of(self._schema, key, self._schema)
        is_text = not quoted and isinstance(value, str)
        value = (of_text if is_text else settled)(value, schema, self._schema)
        self._parts.append(self._named(key) + dumped(value))

    def _named(self, key: str) -> str:
        comma = ", " if self._given else "{"
        self._given.add(key)
        return f"{comma}{dumped(key)}: "

    def give(self, value: Any) -> None:
        """Takes all arguments as one value, which may be the text of one."""
        if isinstance(value, str):
            value = literal(value) if value.strip() else None
        value = value or {}  # nothing, however it is written
        if not isinstance(value, dict):
            raise BrokenError("the arguments are not an object")
        for key, each in value.items():
            self.end(str(key), each)

    def take(self) -> str:
        """What is new in the text of the arguments, once."""
        more, self._parts = self.arguments, []
        return more

    @property
    def arguments(self) -> str:
        """What is new in the text of the arguments."""
        return "".join(self._parts)

    def read(self, reading: Waiting[int]) -> Waiting[None]:
        """Reads it to its end; ``BrokenError`` if it is no call."""
        try:
            self.place = yield from reading
        except BrokenError:
            if not self.is_long:
                raise
            self.place, self.is_broken = self.source.kept, True
        if self._growing:
            self._parts.append('"')
        self._parts.append("}" if self._given else "{}")
