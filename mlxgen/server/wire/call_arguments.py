"""The arguments of a tool call, as JSON text that grows with the model's own text.

Owns the ways in which models write arguments: as JSON, which is passed on as it is, or each one
between tags, which becomes JSON value by value. Must never know marks around calls, or replies.
Invariant: the JSON text does not depend on the pieces that the model's text comes in, and where
the model kept to its format it is what mlx-lm's parser makes of the whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ...text import sequence_overlap

_SPACE = " \t\r\n"


class Growth(NamedTuple):
    """``taken`` characters of the model's text gave ``more`` JSON text; ``ended``: the last."""

    taken: int
    more: str
    ended: bool = False


class Arguments(Protocol):
    """Reads one call's arguments. What it did not take is given again, with what came since."""

    def take(self, text: str, *, final: bool) -> Growth:
        """What is certain of the text; ``final``: nothing comes after it."""
        ...


class JsonArguments:
    """Arguments that are a JSON object already; they end where it does, or at one of ``stops``
    outside its strings."""

    _INSIDE = re.compile(r'["\\]')

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        firsts = "".join(sorted({re.escape(stop[0]) for stop in stops}))
        self._outside = re.compile(rf'["{{}}\[\]{firsts}]')
        self._depth = 0
        self._quoted = False

    def take(self, text: str, *, final: bool) -> Growth:
        """As ``Arguments.take``."""
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


@dataclass(frozen=True, slots=True)
class Tags:
    """A format that has each argument between tags.

    A name stands between ``key`` and ``key_end``, its value between ``value`` (which may be
    nothing) and ``value_end``; ``close`` ends the arguments, and so does the end of the call.
    ``strips`` removes all white space around a value, not one line break; ``nulls`` has ``null``
    for None even where the value is a text. ``call`` writes a call of one argument for the parser.
    """

    key: str
    key_end: str
    value_end: str
    call: Callable[[str, str, str], str]
    value: str = ""
    close: str = ""
    strips: bool = True
    nulls: bool = True


class TaggedArguments:
    """Arguments between tags, of a call of ``tool``.

    Texts grow as they are written; other values come whole, as ``parse`` reads them.
    """

    def __init__(
        self, tags: Tags, tool: Mapping[str, Any], parse: Callable[[str, Any], Any], end: str
    ) -> None:
        self._tags = tags
        self._tool = tool
        self._parse = parse
        self._end = end
        self._name: str = tool["function"]["name"]
        self._given = 0
        self._key: str | None = None
        self._begun = False  # the text of a value

    def take(self, text: str, *, final: bool) -> Growth:
        """As ``Arguments.take``."""
        at, parts = 0, []
        while True:
            read = self._search_key if self._key is None else self._read_value
            taken, more, ended = read(text[at:], final=final)
            at += taken
            parts.append(more)
            if ended or not (taken or more):
                return Growth(at, "".join(parts), ended)

    def _search_key(self, text: str, *, final: bool) -> Growth:
        tags = self._tags
        marks = [mark for mark in (tags.key, tags.close, self._end) if mark]
        start, _, mark = min(_found(text, marks), default=(-1, 0, ""))
        if not mark:
            return Growth(len(text) - max(sequence_overlap(text, mark) for mark in marks), "")
        if mark != tags.key:
            taken = start + (len(mark) if mark == tags.close else 0)
            return Growth(taken, "}" if self._given else "{}", ended=True)
        after = start + len(mark)
        end = text.find(tags.key_end, after)
        if end < 0:
            return Growth(start, "")
        key, at = text[after:end].strip(), end + len(tags.key_end)
        if tags.value:
            rest = text[at:].lstrip(_SPACE)
            if not rest.startswith(tags.value):
                # It may be coming; if it is not, this was no argument.
                return Growth(start if tags.value.startswith(rest) else at, "")
            at = len(text) - len(rest) + len(tags.value)
        self._key, self._begun = key, False
        return Growth(at, "")

    def _read_value(self, text: str, *, final: bool) -> Growth:
        assert self._key is not None
        tags = self._tags
        marks = [mark for mark in (tags.value_end, self._end) if mark]
        end, _, mark = min(_found(text, marks), default=(-1, 0, ""))
        if mark:
            taken = end + (len(mark) if mark == tags.value_end else 0)
            return Growth(taken, self._whole(text[:end]))
        if not self._is_text():
            return Growth(0, "")
        safe = text[: len(text) - max(sequence_overlap(text, mark) for mark in marks)]
        return self._grown(safe, final=final)

    def _whole(self, rest: str) -> str:
        """The rest of a value, up to its end."""
        assert self._key is not None
        key, began = self._key, self._begun
        self._key, self._begun = None, False
        if began:
            return _escaped(self._stripped(rest, start=False)) + '"'
        try:
            call = self._parse(self._tags.call(self._name, key, rest), [self._tool])
            call = call[0] if isinstance(call, list) else call
            value = json.dumps(call["arguments"][key], ensure_ascii=False, allow_nan=False)
            value.encode()
        except Exception:  # the parsers raise what they like for what a model makes up
            value = json.dumps(self._stripped(rest), ensure_ascii=False)
        return self._named(key) + value

    def _grown(self, text: str, *, final: bool) -> Growth:
        """What is certain of a text that goes on."""
        assert self._key is not None
        body = self._stripped(text, start=not self._begun)
        before = "" if self._begun else text[: len(text) - len(self._without_start(text))]
        if not self._begun:
            if not body or (self._tags.nulls and "null".startswith(body.lower()) and not final):
                return Growth(0, "")
            self._begun = True
            return Growth(len(before) + len(body), f'{self._named(self._key)}"{_escaped(body)}')
        return Growth(len(body), _escaped(body))

    def _named(self, key: str) -> str:
        separator = ", " if self._given else "{"
        self._given += 1
        return f"{separator}{json.dumps(key, ensure_ascii=False)}: "

    def _is_text(self) -> bool:
        parameters = self._tool["function"].get("parameters") or {}
        schema = (parameters.get("properties") or {}).get(self._key)
        others = ("enum", "anyOf", "oneOf", "allOf")
        return (
            isinstance(schema, Mapping)
            and schema.get("type") == "string"
            and not any(name in schema for name in others)
        )

    def _without_start(self, text: str) -> str:
        return text.lstrip() if self._tags.strips else text.removeprefix("\n")

    def _stripped(self, text: str, *, start: bool = True) -> str:
        text = self._without_start(text) if start else text
        return text.rstrip() if self._tags.strips else text.removesuffix("\n")


def _found(text: str, marks: list[str]) -> list[tuple[int, int, str]]:
    """Where the first of each mark is; of those at one place the longest is the least."""
    places = ((text.find(mark), -len(mark), mark) for mark in marks)
    return [found for found in places if found[0] >= 0]


def _escaped(text: str) -> str:
    """Text as a part of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
