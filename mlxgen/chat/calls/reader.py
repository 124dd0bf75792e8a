"""Reads calls as they grow: the tool that is called, and its arguments as JSON text.

A ``ToolReader`` is a format together with the tools of one request; a ``Call`` is a call being
read. Invariant: a call is always of an offered tool, and its arguments have the types in the tool's
schema wherever the model's text can be read so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, TypeAlias

import regex

from ...filters.schema.fitting import Fitting, UncheckedError
from .formats import CallFormat
from .schema import Schema, Shape
from .styles import FENCES, NEVER, Style, Tags, any_of
from .values import (
    JSON,
    LONGEST,
    BrokenError,
    Source,
    Waiting,
    dumped,
    escaped,
    literal,
)

Tool: TypeAlias = Mapping[str, Any]

_DEEP = 16  # levels of tags
HELD = 64  # characters of a string before it is passed on while it grows
_AFFIXES = re.compile(r"^(?:functions?|tools?)[._:/]|(?:\.call)?[:._][0-9]+$|\.call$")
_NAMESPACES = re.compile(r"__|[.:/]")
_SEPARATORS = re.compile(r"[-_.:/\s]+")
_NUMBERED = re.compile(r"(?:(?:call|functions?|tool)[._:]?)?[0-9]+")


class ToolReader:
    """Reads the calls of one request's tools in a format.

    ``most``: how many calls to pass on. ``strict``: the tools whose arguments a grammar holds to
    their schemas, after the published mark.
    """

    def __init__(
        self,
        format: CallFormat,
        tools: Sequence[Tool],
        *,
        most: int | None = None,
        strict: Set[str] = frozenset(),
    ) -> None:
        self.format = format
        self.strict = strict
        self.most = most
        self.schemas: dict[str, Schema] = {}
        for tool in tools:
            function = tool["function"]
            self.schemas[function["name"]] = function.get("parameters") or {}

    def accepts(self, call: Call) -> bool:
        """Whether to take a call that no grammar held: a strict tool's must fit its schema."""
        if call.name is None or call.name not in self.strict:
            return True
        try:
            return Fitting(self.schemas[call.name]).objection("".join(call.parts)) is None
        except UncheckedError:
            return True

    def meant(self, name: str) -> str:
        """The one tool that a name can mean, with or without its namespace. ``BrokenError`` if
        there is none, or more than one."""
        bare: str = _AFFIXES.sub("", name)
        for wanted in (name, bare):
            if wanted in self.schemas:
                return wanted
            found = [known for known in self.schemas if _plain(known) == _plain(wanted)]
            if len(found) == 1:
                return found[0]
        found = [known for known in self.schemas if _is_inside(known, bare)]
        found = found or [known for known in self.schemas if _is_inside(bare, known)]
        if len(found) == 1:
            return found[0]
        if len(self.schemas) == 1 and (_NUMBERED.fullmatch(name) or _NUMBERED.fullmatch(bare)):
            return next(iter(self.schemas))
        raise BrokenError(f"there is no tool {name[:40]!r}")

    def named(self, texts: Sequence[str]) -> list[str]:
        """The texts, with ``{name}`` replaced by the name of each tool."""
        return [
            text.replace("{name}", name)
            for text in texts
            for name in (self.schemas if "{name}" in text else ("",))
        ]


def _plain(name: str) -> str:
    return _SEPARATORS.sub("", name).lower()


def _is_inside(name: str, whole: str) -> bool:
    """Whether ``name`` is ``whole`` without its namespace, or without the first parts of that."""
    parts, others = (list(map(_plain, _NAMESPACES.split(each))) for each in (name, whole))
    return others[-len(parts) :] == parts


class Call:
    """A call being read from a source; it takes its arguments as a ``values.Fields``.

    ``name`` is the tool's, once known; ``parts`` is the new text of the arguments. ``place`` is
    where the call ends; ``is_long``: it must be passed on before its end; ``is_begun``: some of it
    was passed on; ``is_broken``: it proved unreadable after that.
    """

    def __init__(self, source: Source, tools: ToolReader) -> None:
        self.source = source
        self.tools = tools
        self.starts, self.ends, self.begins = tools.format.patterns
        self.over = "|".join((self.ends, self.starts, self.begins))  # what may follow the call
        self.follow = ""  # what may follow a string in it
        self.name: str | None = None
        self.id: str | None = None
        self.place = 0
        self.is_begun = self.is_broken = self.is_long = False
        self.parts: list[str] = []
        self._shape = Shape(True)
        self._known: Sequence[str] = ()  # the arguments in the schema
        self._given: set[str] = set()
        self._growing = 0  # characters passed on of a growing string

    def read(self, style: Style, place: int) -> Waiting[None]:
        """Read the call to its end; ``BrokenError`` if it is not a call."""
        try:
            self.place = yield from self._read(style, place)
        except BrokenError:
            if not self.is_long:
                raise
            self.place, self.is_broken = self.source.kept, True
        if self._growing:
            self.parts.append('"')
        self.parts.append("}" if self._given else "{}")

    def _read(self, style: Style, place: int) -> Waiting[int]:
        source = self.source
        if not style.head:
            return (yield from self._named_object(place))
        head = yield from self._begun(rf"\s*{style.head}", place)
        self._named(head["name"], head.groupdict().get("id"))
        if style.tags is not None:
            return (yield from self._tagged(style.tags, head))
        if close := style.brackets:
            ended = rf"{regex.escape(close)}[^\S\n]*(?:[,;\]\n]|{self.over}|{{end}})"
            self._strings_end_before(close, ended)
            self.over = rf"\]?\s*(?:{self.over})"
            return (yield from style.notation.members(source, head.end(), close, self))
        self.over += rf"|(?:```\s*)?(?:{any_of(end for end in style.ends if end not in FENCES)})"
        place = yield from self._object(head.end())
        return (yield from source.passed(place, ("}", *style.ends)))  # one bracket too many

    def _begun(self, pattern: str, place: int) -> Waiting[regex.Match[str]]:
        match = yield from self.source.match(pattern, place)
        if match is None:
            raise BrokenError("no call begins here")
        return match

    def _named(self, name: str, id: str | None = None) -> None:
        """Set the tool that the name can mean. ``BrokenError`` if there is no such tool."""
        self.name = self.tools.meant(name)
        self._shape = Shape(self.tools.schemas[self.name])
        self._known = [*self._shape.properties]
        self.id = id if id and ":" in id else self.id

    def _is_over(self, place: int) -> Waiting[bool]:
        """Whether something that may follow a call is at ``place``."""
        return (yield from self.source.match(rf"\s*(?:{self.over}|{{end}})", place)) is not None

    # ---- arguments -------------------------------------------------------------------------------

    def _strings_end_before(self, close: str, ended: str = "") -> None:
        """A quote ends a string argument only before another argument, before the bracket that
        closes them all (or ``ended``, a pattern for it), or before what may follow the call."""
        close = re.escape(close)
        key = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[\w$.-]+)\s*[:=]"""
        self.follow = rf"\s*(?:,\s*(?:{key}|{close})|{ended or close}|{self.over}|{{end}})"

    def begin(self, key: str, *, quoted: bool = True) -> Callable[[str], None] | None:
        self._growing = 0

        def grow(text: str) -> None:
            if not self._growing:
                self.parts.append(f'{self._key(key)}"')
            self.parts.append(escaped(text))
            self._growing += len(text)
            if self._growing >= HELD:
                self.is_long, self.source.limit = True, math.inf

        return grow if self._shape.property(key).grows(quoted=quoted) else None

    def end(self, key: str, value: Any, *, quoted: bool = True) -> None:
        if self._growing:
            self._growing = 0
            self.parts.append('"')
            return
        shape = self._shape.property(key)
        is_text = not quoted and isinstance(value, str)
        value = shape.of_text(value) if is_text else shape.settled(value)
        self.parts.append(self._key(key) + dumped(value))

    def _key(self, key: str) -> str:
        comma = ", " if self._given else "{"
        self._given.add(key)
        return f"{comma}{dumped(key)}: "

    def _give(self, value: Any) -> None:
        """Take all arguments as one value: an object, or text that holds one."""
        if isinstance(value, str):
            value = literal(value) if value.strip() else None
        value = value or {}  # null, "" or an empty value: no arguments
        if not isinstance(value, dict):
            raise BrokenError("the arguments are not an object")
        for key, each in value.items():
            self.end(str(key), each)

    def _object(self, place: int) -> Waiting[int]:
        """Read the arguments as one JSON object, perhaps in a fence, or as text that holds one;
        there are none if something that may follow a call comes at once."""
        place = yield from self.source.passed(place, ("```json", "```"))
        if (yield from self._is_over(place)):
            return place
        self._strings_end_before("}")
        member = rf"{_MEMBER}|\s*(?:{self.over})"
        value, place = yield from JSON.value(self.source, place, member, self)
        self._give(value)
        return place

    # ---- an object with the name -----------------------------------------------------------------

    def _named_object(self, place: int) -> Waiting[int]:
        """Read ``{"name": ..., "arguments": {...}}``, perhaps inside another object. If the members
        have another order, the call is read only when it is whole."""
        source = self.source
        head = yield from self._begun(_HEAD, place)
        if head["name"] is not None:
            self._named(head["name"])
            self.id = head["id"]
            if holds := (yield from source.match(_ARGUMENTS, head.end())):
                source.kept = place = yield from self._object(holds.end())
                # The rest of the objects around the arguments may be missing at the end of the call
                for _ in range(source.text.count("{", head.start("object"), head.end())):
                    while member := (yield from source.match(_NEXT, place)):
                        value, place = yield from JSON.value(source, member.end(), _MEMBER)
                        is_id = member["key"] in _IDS and isinstance(value, str)
                        if is_id and not self.is_long:  # a long call has begun without one
                            self.id = value
                    over = rf"\s*,?\s*\}}|(?=\s*\]?\s*(?:{self.over}|,\s*\{{|{{end}}))"
                    if (close := (yield from source.match(over, place))) is None:
                        raise BrokenError("an object does not go on")
                    place = close.end()
                return place
        value, end = yield from JSON.value(source, head.start("object"), _MEMBER)
        members = _flat(value)
        name = next((v for k, v in members if k in _NAMES and isinstance(v, str)), None)
        given = [v for k, v in members if k in _HOLDS]
        if name is None or (not given and any(k not in _KNOWN for k, _ in members)):
            raise BrokenError("the call has no name, or its arguments are somewhere else")
        self._named(name)
        self.id = next((v for k, v in members if k in _IDS and isinstance(v, str)), None)
        if given and given[0]:
            self._give(given[0])
        return end

    # ---- arguments between tags ------------------------------------------------------------------

    def _tagged(self, tags: Tags, head: regex.Match[str]) -> Waiting[int]:
        source, known, names = self.source, self._known, any_of(self.tools.schemas)
        if tags.over == NEVER:  # the name of the next call is all that ends this one
            self.over += rf"|(?:{names})\s*(?:{tags.tag}|{self.ends})"
        place = yield from source.passed(head.end(), (head[0].strip(),), often=True)
        if body := (yield from source.match(rf"\s*(?:{tags.body})?\s*(?=\{{)", place)):
            place = yield from self._object(body.end())
            place = yield from source.passed(place, tags.body_end)
        while True:
            tag = yield from source.match(rf"\s*(?:{tags.tag})", place)
            tag = tag or (yield from source.match(rf"\s*(?:{tags.half})", place, known))
            if tag is not None:
                place = yield from self._value(tags, tag)
            elif end := (yield from source.match(rf"\s*(?:{tags.over})", place)):
                return end.end()
            elif (yield from self._is_over(place)):
                return place
            elif found := (yield from source.match(_ATTRIBUTE, place, known)):
                self.end(found["key"], "".join(found.captures("short")), quoted=False)
                place = yield from source.passed(found.end(), ("/>", ">"))
                if source.text.endswith("/>", 0, place):
                    return place
            else:
                raise BrokenError("the call does not go on")

    def _value(self, tags: Tags, tag: regex.Match[str]) -> Waiting[int]:
        """Read the value after a tag; return where it ends, with the tag that ends it."""
        source, groups, start = self.source, tag.groupdict(), tag.end()
        if "|" in tag[0]:  # a control token twice is a slip; another tag may be the value's
            start = yield from source.passed(start, (tag[0].strip(),), often=True)
        key, is_raw = (groups["key"] or "").strip(), groups.get("raw") is not None
        is_json = groups.get("kind") not in (None, tags.kinds[0])
        is_string = groups.get("kind") == tags.kinds[0]
        # The line breaks around a value and the last line's indentation are layout; all other white
        # space belongs to the value, as in indented code.
        is_new_line = (yield from source.at(start)) == "\n"
        is_laid_out = not is_raw and not tags.exact and (tags.lines or is_new_line)
        start += is_laid_out and is_new_line
        grow = None if is_json else self.begin(key, quoted=is_string)
        missing = [each for each in self._known if each not in {key, *self._given} and not is_raw]
        end = r"\]\]>\s*</param>" if is_raw else tags.end.replace("{key}", regex.escape(key))
        stops = (
            rf"(?P<end>{end})|(?P<over>{tags.over})|(?P<close>{self.ends})"
            rf"|(?P<tag>{tags.tag}|{tags.half})"
            rf"|(?P<begin>{self.begins})|(?P<start>{self.starts})"
        )
        search = sent = start
        quoted = {"end": 0, "over": 0, "close": 0}
        while True:
            stop = source.find(stops, search, missing)
            until = stop.start() if stop is not None else len(source.text)
            more = source.text[sent:until].rstrip()
            if grow is not None and (self._growing or not "null".startswith(more.strip().lower())):
                grow(more)
                sent += len(more)
            if stop is not None and (not stop.partial or len(source.text) - until >= LONGEST):
                stop = yield from source.match(stops, until, missing)
                if stop is not None and (yield from self._stands(tags, stop, missing, quoted)):
                    break
                search = until + 1  # the value quotes it
            elif source.final:
                source.kept = len(source.text)
                raise BrokenError("a value does not end")
            else:
                source.reach(until)
                search = until
                yield
        place = source.kept = until if stop["end"] is None else stop.end()
        value: Any = source.text[start:until]
        if is_laid_out:
            value = _LAST_LINE.sub("", value)
        value = value if stop["end"] is not None else value.rstrip()
        if grow is not None and self._growing:
            grow(source.text[sent : start + len(value)])
        elif is_json:
            with suppress(ValueError):
                value, is_raw = literal(value), True
        elif tags.nested and tags.nested in value:
            mark = regex.escape(tags.nested)
            value = _members(iter(regex.split(rf"{mark}(</?[^<>\s]+>)", value)))
            value, is_raw = self._shape.property(key).of_members(value), True
        self.end(key, value, quoted=is_raw or is_string)
        return place

    def _stands(
        self, tags: Tags, stop: regex.Match[str], missing: Sequence[str], quoted: dict[str, int]
    ) -> Waiting[bool]:
        """Whether ``stop`` ends a value: it does before something that can follow the value, unless
        it belongs to tags that the value quotes."""
        source = self.source
        if stop["tag"] is not None:  # the end of this value is missing
            before = source.text[max(0, stop.start() - 80) : stop.start()].rstrip(" \t")
            key = next((each.strip() for each in stop.captures("key") if each), "")
            on_line = before[-1:] in ("\n", "") or not tags.lines
            if key in missing and on_line and not any(quoted.values()):
                return True
            quoted["end"] += stop[0].startswith("<")
            return False
        for opening, closing in (("begin", "over"), ("start", "close")):
            if stop[opening] is not None:
                quoted[closing] += 1
                return False
        kind = next(kind for kind in quoted if stop[kind] is not None)
        nexts = rf"{self.over}|{{end}}"
        if kind == "end":
            nexts = rf"{tags.tag}|{tags.half}|(?:{tags.over})(?:[^\"'`]|{{end}})|{nexts}"
        if quoted[kind]:  # it ends quoted tags, unless it is the very end
            nexts = rf"(?:{tags.over})?\s*(?:{self.ends})?\s*(?:{self.starts}|{{end}})"
            quoted[kind] -= 1
        return (yield from source.match(rf"\s*(?:{nexts})", stop.end(), self._known)) is not None


_NAMES = ("name", "tool_name", "function_name", "function", "tool")
_HOLDS = ("arguments", "parameters", "args", "input", "tool_arguments", "tool_input")
_IDS = ("id", "tool_call_id", "call_id")
_KNOWN = (*_NAMES, *_HOLDS, *_IDS, "type", "index")
_MEMBER = r"\s*(?:[,}\]]|{end})"
_OTHERS = (
    rf"(?:[\"']?(?:{'|'.join(_IDS)})[\"']?\s*:\s*[\"'](?P<id>[^\"'{{}}]*)[\"']\s*,\s*"
    r"|[\"']?(?:type|index)[\"']?\s*:\s*[\"']?\w*[\"']?\s*,\s*)*"
)
_HEAD = (
    rf"\s*(?:\{{\s*(?:(?=\{{)|[\"']?tool_calls?[\"']?\s*:\s*\[?\s*))?(?P<object>)\{{\s*{_OTHERS}"
    rf"(?:[\"']?(?:function|tool)[\"']?\s*:\s*\{{\s*{_OTHERS})?"
    rf"(?:[\"']?(?:{'|'.join(_NAMES)})[\"']?\s*:\s*"
    r"(?:\"(?P<name>[^\"\\\n{]*)\"|'(?P<name>[^'\\\n{]*)')"
    rf"|(?=[\"']?(?:{'|'.join(_HOLDS)})[\"']?\s*:))"
)
_ARGUMENTS = rf"\s*,\s*[\"']?(?:{'|'.join(_HOLDS)})[\"']?\s*:"
_NEXT = r"\s*,\s*[\"']?(?P<key>[\w$.-]+)[\"']?\s*:"
_ATTRIBUTE = (
    r"\s*(?P<key>\L<keys>)\s*=\s*"
    r"""(?:"(?P<short>[^"]*)"|'(?P<short>[^']*)'|(?P<short>[^\s<>"']+))(?=[\s<>/])"""
)
_LAST_LINE = regex.compile(r"\n[ \t]*+\Z")


def _members(pieces: Iterator[str], depth: int = 0) -> Any:
    """The tags of a value, each with its content, or its text if it has none."""
    if depth > _DEEP:
        raise BrokenError("the value is too deep")
    found: list[tuple[str, Any]] = []
    text = next(pieces, "")
    for tag in pieces:
        if tag.startswith("</"):
            break
        found.append((tag[1:-1], _members(pieces, depth + 1)))
        next(pieces, "")
    return found or text


def _flat(value: Any) -> list[tuple[str, Any]]:
    """The members of an object, with those of an object that stands in the place of the name."""
    if not isinstance(value, dict):
        raise BrokenError("not an object")
    found: list[tuple[str, Any]] = []
    for key, each in value.items():
        found += _flat(each) if key in _NAMES and isinstance(each, dict) else [(key, each)]
    return found
