"""One call after the other, read from a model's text by the record of its format.

A call is held until it is whole, so that what cannot be read stays text; only a long string in it
is passed on while it grows, and from then on it is a call whatever follows. Invariant: only a call
of one of the given tools is a call, and its arguments are JSON in which each value has the type
that the tool's schema says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import regex

from .formats import CallFormat
from .schema import grows, names_of, of_text, property_of, settled
from .styles import Style, any_of
from .values import BrokenError, Source, Waiting, compiled, dumped, escaped

Tool: TypeAlias = Mapping[str, Any]

HELD = 64  # characters of a string before it is passed on while it grows
_AFFIXES = re.compile(r"^(?:functions?|tools?)[._:/]|[:._][0-9]+$")
_NAMESPACES = re.compile(r"[.:/]")
_SEPARATORS = re.compile(r"[-_.:/\s]+")
_NUMBERED = re.compile(r"(?:(?:call|function|functions|tool)[._:]?)?[0-9]+")


class ToolCall(NamedTuple):
    """A function and its arguments as JSON text; ``id`` if the model gave one."""

    name: str
    arguments: str
    id: str | None = None


class Arguments:
    """The arguments of a call, as JSON text that grows; see ``styles.Given``."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._known = names_of(schema, schema)
        self._given: set[str] = set()
        self._parts: list[str] = []
        self._growing = 0  # characters of the string that grows, with its key
        self._key = ""
        self.is_long = False  # whether a string was so long that it has to be passed on

    @property
    def keys(self) -> Sequence[str]:
        return [*self._known]

    @property
    def missing(self) -> Sequence[str]:
        return [key for key in self._known if key not in self._given]

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
            self.is_long = self.is_long or self._growing >= HELD

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

    def take(self) -> str:
        """What is new in the text."""
        more, self._parts = "".join(self._parts), []
        return more


class Call:
    """A call that is being read; see ``styles.Call``."""

    def __init__(self, reader: ToolReader, source: Source) -> None:
        self._reader = reader
        self.source = source
        self.borders = reader.borders
        self.starts_with = any_of(reader.starts)
        self.ends_with = any_of((*reader.ends, *reader.format.borders))
        self.name: str | None = None
        self.id: str | None = None
        self.given = Arguments({})
        self.place = 0  # where it ends, if it was read
        self.is_broken = False  # whether it was too long to be given back when it broke

    def named(self, name: str, id: str | None = None) -> None:
        self.name = self._reader.meant(name)
        self.given = Arguments(self._reader.schema(self.name))
        self.id = id if id and ":" in id else self.id

    def ends(self, place: int) -> Waiting[bool]:
        place = yield from self.source.space(place)
        if place >= len(self.source.text):
            return self.source.final
        match = yield from self.source.match(self._reader.border, place)
        return match is not None and not match.partial

    @property
    def is_long(self) -> bool:
        """Whether it has to be passed on before its end."""
        return self.given.is_long

    def read(self, style: Style, place: int) -> Waiting[None]:
        """Reads it; ``BrokenError`` if it is no call."""
        try:
            self.place = yield from style.read(self, place)
        except BrokenError:
            if not self.is_long:
                raise
            self.place, self.is_broken = self.source.kept, True
        self.given.close()


class ToolReader:
    """Reads the calls of these tools in a format; for one request.

    ``most``: how many of them are passed on.
    """

    def __init__(
        self, format: CallFormat, tools: Sequence[Tool], *, most: int | None = None
    ) -> None:
        self.format = format
        self._schemas: dict[str, Any] = {
            tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools
        }
        self._most = most

    def schema(self, name: str) -> Any:
        """That of the arguments of a tool."""
        return self._schemas[name]

    def meant(self, name: str) -> str:
        """The one tool that a name can mean. ``BrokenError`` if there is none, or more."""
        if name in self._schemas:
            return name
        bare: str = _AFFIXES.sub("", name)
        for wanted in (bare, _NAMESPACES.split(bare)[-1]):
            if wanted in self._schemas:
                return wanted
            plain = _plain(wanted)
            found: list[str] = [known for known in self._schemas if _plain(known) == plain]
            if len(found) == 1:
                return found[0]
        if len(self._schemas) == 1 and _NUMBERED.fullmatch(name):
            return next(iter(self._schemas))
        raise BrokenError(f"there is no tool {name[:40]!r}")

    def passes_on(self, before: int) -> bool:
        """Whether another call is passed on, after ``before`` of them."""
        return self._most is None or before < self._most

    # ---- what the format says of these tools -----------------------------------------------------

    @cached_property
    def starts(self) -> tuple[str, ...]:
        """The marks with which calls begin."""
        return self.format.starts

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """The marks with which they end."""
        return tuple(mark for mark in (self.format.end, *self.format.ends) if mark)

    @cached_property
    def bare(self) -> tuple[str, ...]:
        """The beginnings of calls that have lost their mark."""
        return self._named(self.format.bare)

    @cached_property
    def inner(self) -> tuple[str, ...]:
        """The beginnings of calls between the marks, after something else."""
        return self._named([text for style in self.format.styles for text in style.begins])

    @cached_property
    def borders(self) -> str:
        """A pattern of what ends a call from outside."""
        begins = [text for style in self.format.styles for text in style.begins if len(text) > 1]
        begins = [text for text in begins if "{name}" not in text]
        return any_of([*self.ends, *self.starts, *self.format.borders, *begins])

    @cached_property
    def border(self) -> regex.Pattern[str]:
        return compiled(self.borders)

    def _named(self, texts: Sequence[str]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for text in texts:
            names = self._schemas if "{name}" in text else ("",)
            found.update(dict.fromkeys(text.replace("{name}", name) for name in names))
        return tuple(found)


def _plain(name: str) -> str:
    return _SEPARATORS.sub("_", name).strip("_").lower()
