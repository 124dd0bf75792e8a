"""Arguments that each stand between tags.

Such values become JSON one after the other: a text grows as it is written, any other value comes
whole. Invariant: the one of ``arguments``; mlx-lm's parser decides which key and which type an
argument has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import regex

from ...text import first_mark
from .arguments import Arguments, Growth, Parse, Tool, dumped, escaped

_NULL = regex.compile(r"(?i:null)\s*")
_JSON = regex.compile(r'["{\[\-\d](?s:.*)|(?:true|false|null|NaN|Infinity)\s*')


@dataclass(frozen=True, slots=True)
class Tags:
    """A format that has each argument between tags.

    ``tag`` is the pattern of what comes before a value; it begins with ``opening``. ``end`` comes
    after the value; if the tag matched a group ``raw``, ``raw_end`` does, and the value is taken
    as it is. ``close`` ends the arguments, and so does the end of the call. ``call`` is a call with
    one argument for the parser, with ``NAME`` and ``ARGUMENT`` in their places. ``strips`` removes
    white space at the two ends of a value. ``guesses``: what looks like JSON is JSON, whatever the
    tool says.
    """

    opening: str
    tag: str
    end: str
    call: str
    close: str = ""
    raw_end: str = ""
    strips: tuple[Callable[[str], str], Callable[[str], str]] = (str.lstrip, str.rstrip)
    guesses: bool = False

    def __call__(self, tool: Tool, parse: Parse, end: str) -> Arguments:
        """What reads the arguments of a call, as an ``ArgumentFormat``."""
        return TaggedArguments(self, tool, parse, end)


class TaggedArguments:
    """Arguments between tags, of a call of ``tool`` that ``end`` ends."""

    def __init__(self, tags: Tags, tool: Tool, parse: Parse, end: str) -> None:
        self._tags = tags
        self._tool = tool
        self._parse = parse
        self._end = end
        self._given = 0
        self._tag: regex.Match[str] | None = None  # the tag of the value that is read
        self._is_raw = False
        self._key = ""
        self._other: regex.Pattern[str] | None = None  # values that are not texts; None: any
        self._begun = False  # whether a value is a text and has begun

    def take(self, text: str) -> Growth:
        at, parts = 0, []
        while True:
            read = self._search_tag if self._tag is None else self._read_value
            taken, more, ended = read(text[at:])
            at += taken
            parts.append(more)
            if ended or not (taken or more):
                return Growth(at, "".join(parts), ended)

    def _search_tag(self, text: str) -> Growth:
        tags = self._tags
        start, mark = first_mark(text, (tags.opening, tags.close, self._end))
        if not mark:
            return Growth(start, "")
        if mark != tags.opening:
            taken = start + (len(mark) if mark == tags.close else 0)
            return Growth(taken, "}" if self._given else "{}", ended=True)
        tag = regex.compile(tags.tag).match(text, start, partial=True)
        if tag is None:
            return Growth(start + len(mark), "")
        if tag.partial:
            return Growth(start, "")
        self._tag, self._begun = tag, False
        self._is_raw = bool(tags.raw_end and tag["raw"])
        try:
            self._key, _ = self._parsed("null")
        except Exception:  # the parsers may raise anything for what a model makes up
            self._tag = None
        self._other = _JSON if tags.guesses else _NULL if self._takes_texts() else None
        return Growth(tag.end(), "")

    def _read_value(self, text: str) -> Growth:
        tags = self._tags
        end, mark = first_mark(text, (tags.raw_end,) if self._is_raw else (tags.end, self._end))
        if not mark:
            return self._grown(text[:end])
        taken = end + (0 if mark == self._end else len(mark))
        if self._begun:
            more = escaped(self._stripped(text[:end], start=False)) + '"'
        else:
            more = self._named() + self._json(text[:end])
        self._tag = None
        return Growth(taken, more)

    def _grown(self, text: str) -> Growth:
        """The certain part of a growing value."""
        body = self._stripped(text, start=not self._begun)
        if self._begun:
            return Growth(len(body), escaped(body))
        if not body or self._other is None or self._other.fullmatch(body, partial=True):
            return Growth(0, "")
        self._begun = True
        return Growth(text.index(body) + len(body), f'{self._named()}"{escaped(body)}')

    def _named(self) -> str:
        self._given += 1
        return f"{', ' if self._given > 1 else '{'}{dumped(self._key)}: "

    def _json(self, value: str) -> str:
        """A whole value, as JSON text."""
        body = self._stripped(value)
        if self._other is not None and not self._other.fullmatch(body):
            return dumped(body)
        try:
            return dumped(self._parsed(value)[1])
        except Exception:  # as above; and not everything that they return is JSON
            return dumped(body)

    def _takes_texts(self) -> bool:
        """Whether the parser leaves texts that look like other values as they are."""
        try:
            return all(self._parsed(probe)[1] == probe for probe in ("0", "true", "{}"))
        except Exception:  # as above
            return False

    def _parsed(self, value: str) -> tuple[str, Any]:
        """What the parser makes of this value: the key, and the value."""
        assert self._tag is not None
        argument = self._tag[0] + value + (self._tags.raw_end if self._is_raw else "")
        before, _, after = self._tags.call.partition("ARGUMENT")
        before = before.replace("NAME", self._tool["function"]["name"])
        read = self._parse(before + argument + self._tags.end + after, [self._tool])
        ((key, parsed),) = (read[0] if isinstance(read, list) else read)["arguments"].items()
        return key, parsed

    def _stripped(self, text: str, *, start: bool = True) -> str:
        if self._is_raw:
            return text
        left, right = self._tags.strips
        return right(left(text) if start else text)
