"""The ways in which models write a call, as values from which it is read, written and held.

A ``Style`` has the pieces that its makers publish, of which ``write`` makes text and the grammar
makes rules, and a ``Reads``, one of four, with the patterns by which calls are read, which know the
slips. Invariant: what ``write`` writes is read as what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import regex

from .call import Call
from .values import (
    JSON,
    LONGEST,
    BrokenError,
    Notation,
    Source,
    Waiting,
    compiled,
    dumped,
    literal,
)

Pieces: TypeAlias = tuple[str, ...]
TEXT = "{text}"  # the piece in whose place any text may stand


def filled(pieces: Iterable[str], **values: str) -> str:
    """The text of some pieces, with the values of their places in braces."""
    return _PLACE.sub(lambda place: values.get(place[1], place[0]), "".join(pieces))


_PLACE = regex.compile(r"\{(name|quoted|index|key|kind)\}")


def any_of(texts: Iterable[str]) -> str:
    """A pattern of some texts, the longest first."""
    return "|".join(map(regex.escape, sorted(texts, key=len, reverse=True))) or "(?!)"


class Reads(Protocol):
    """How calls are read."""

    def read(self, call: Call, place: int) -> Waiting[int]:
        """Reads the call at a place; returns where it ends. ``BrokenError`` if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What stands between the marks of calls. A piece is a mark or text.

    - ``open``, ``close``: around the arguments of a call, with the function's ``{name}``, or
      ``{quoted}`` as JSON, and perhaps the ``{index}`` of the call.
    - ``key``, ``after``: around the value of each argument, with its ``{key}`` and perhaps the
      ``{kind}`` of its value; without a ``key``, the arguments are one JSON object. ``comma``
      stands between two. ``value``: how one is written.
    - ``around``, ``between``: around all calls, and between two; None: a grammar allows only one.
    - ``spaced``: white space may stand between any two pieces of a call.
    - ``first``, ``again``, ``tail``: what may come before the first call, between two and after the
      last, besides white space. ``begins``: how a call begins.
    """

    reads: Reads
    open: Pieces
    close: Pieces = ()
    key: Pieces = ()
    after: Pieces = ()
    comma: str = ""
    value: Callable[[Any], str] = dumped
    around: tuple[str, str] = ("", "")
    between: str | None = None
    spaced: bool = False
    first: Pieces = ()
    again: Pieces = ()
    tail: Pieces = ()
    begins: Pieces = ()

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls without the marks around them all."""
        texts = []
        for i, (name, arguments) in enumerate(calls):
            values = {"name": name, "quoted": dumped(name), "index": str(i)}
            inner = dumped(dict(arguments))
            if self.key:
                inner = self.comma.join(self._argument(*each) for each in arguments.items())
            texts.append(filled(self.open, **values) + inner + filled(self.close, **values))
        between = "\n" if self.between is None else self.between
        return self.around[0] + between.join(texts) + self.around[1]

    def _argument(self, key: str, value: Any) -> str:
        kinds = self.reads.kinds if isinstance(self.reads, Tagged) else ("", "")
        tag = filled(self.key, key=key, kind=kinds[not isinstance(value, str)])
        return tag + self.value(value) + "".join(self.after)


def as_text(value: Any) -> str:
    """A string as it is, and any other value as JSON."""
    return value if isinstance(value, str) else dumped(value)


def _begun(source: Source, pattern: str, place: int) -> Waiting[regex.Match[str]]:
    match = yield from source.match(pattern, place)
    if match is None:
        raise BrokenError("no call begins here")
    return match


def _object(call: Call, place: int) -> Waiting[int]:
    """Arguments as one JSON object, or as text that holds one; nothing, if a mark comes at once."""
    source = call.source
    if (yield from source.match(call.ends, place)):
        return place
    value, place = yield from JSON.value(source, place, _MEMBER, call)
    if value is not call:
        call.give(value)
    return place


# ---- objects with a name -------------------------------------------------------------------------

_NAMES = frozenset({"name", "tool_name", "function", "tool", "function_name"})
_HOLDS = frozenset({"arguments", "parameters", "args", "input"})
_IDS = frozenset({"id", "tool_call_id", "call_id"})
_SAYS_NOTHING = frozenset({"type", "index"})
_KNOWN = _NAMES | _HOLDS | _IDS | _SAYS_NOTHING
_MEMBER = r"\s*(?:[,}\]]|{end})"


@dataclass(frozen=True, slots=True)
class Objects:
    """``{"name": ..., "arguments": {...}}``; ``by_name``: the name is the key of the arguments."""

    by_name: bool = False

    def read(self, call: Call, place: int) -> Waiting[int]:
        source, members = call.source, _Members(call, self.by_name)
        place = (yield from _begun(source, r"\s*\{(?:\s*\{)?(?=\s*[^\s{])", place)).end()
        place = yield from JSON.members(source, place, "}", members)
        members.close()
        return place


@dataclass(slots=True)
class _Members:
    """Takes the members of an object that is a call, or of the one that it wraps."""

    call: Call
    by_name: bool
    takes: str = ""  # the key whose value are the arguments
    held: Any = None  # arguments that came before the name
    others: bool = False  # whether there was more
    follow: str = _MEMBER

    @property
    def over(self) -> str:
        return self.call.ends if self.takes else "(?!)"

    def begin(self, key: str) -> Call | _Members | None:
        if self.call.name is None and key not in _KNOWN:
            if not self.by_name:
                raise BrokenError("an object that is no call")
            self.call.named(key)
        elif key in _NAMES:
            return self
        elif key not in _HOLDS or self.call.name is None or self.takes:
            return None
        self.takes = key
        return self.call

    def end(self, key: str, value: Any) -> None:
        call = self.call
        if key == self.takes:
            if value is not call:
                call.give(value)
        elif key in _NAMES and call.name is None and isinstance(value, str):
            call.named(value)
        elif key in _HOLDS:
            self.held = value
        elif key in _IDS and isinstance(value, str):
            call.id = value
        elif value is not self and key not in _SAYS_NOTHING:
            self.others = True

    def close(self) -> None:
        if self.call.name is None or (self.others and not self.takes and self.held is None):
            raise BrokenError("the call has no name, or its arguments are somewhere else")
        if self.held and not self.takes:
            self.call.give(self.held)


# ---- a head, and one object ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Headed:
    """The name in a head of its own, and the arguments as one JSON object.

    ``head`` is the pattern of what comes before the object, and ``close`` what may come after it.
    """

    head: str
    close: Pieces = ()

    def read(self, call: Call, place: int) -> Waiting[int]:
        head = yield from _begun(call.source, rf"\s*{self.head}", place)
        call.named(head["name"], head.groupdict().get("id"))
        place = yield from call.source.passed(head.end(), self.close)
        if place > head.end():  # without arguments
            return place
        place = yield from _object(call, place)
        return (yield from call.source.passed(place, self.close))


# ---- arguments between tags ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """Each argument between tags, strings as they are.

    - ``head`` and ``tag``: the patterns of what comes before all arguments, and before one; a tag
      may say which of two ``kinds`` its value has, a string or another. ``half``: a tag of which
      something is missing, if its key is known.
    - ``end`` and ``over``: the tags after a value, with its ``{key}``, and after all of them.
    - ``body`` and ``body_end``: around arguments that are one JSON object instead, if anything is.
    - ``lines``: a value has lines of its own; else it may have them, unless it is ``exact``.
    """

    head: str
    tag: str
    half: str = (
        r"(?:<|(?<![/\w=\"'<]))(?:atem:)?(?:param(?:eter)?)?[\s=]{0,9}(?:name\s*=\s*)?"
        r"[\"']?(?P<key>\L<keys>)[\"']?\s*>"
    )
    end: str
    over: str = "(?!)"
    body: str = "(?!)"
    body_end: Pieces = ()
    lines: bool = False
    exact: bool = False
    kinds: tuple[str, str] = ("true", "false")

    def read(self, call: Call, place: int) -> Waiting[int]:
        source = call.source
        head = yield from _begun(source, rf"\s*{self.head}", place)
        call.named(head["name"])
        place = yield from source.passed(head.end(), (head[0].strip(),), often=True)
        if body := (yield from source.match(rf"\s*(?:{self.body})?\s*(?=\{{)", place)):
            place = yield from _object(call, body.end())
            place = yield from source.passed(place, self.body_end)
        full, half, over = (rf"\s*(?:{each})" for each in (self.tag, self.half, self.over))
        pair = rf"\s*(?P<key>\L<keys>)\s*=\s*{_SHORT}(?=[\s<>/])"
        while True:
            tag = yield from source.match(full, place)
            tag = tag or (yield from source.match(half, place, call.known))
            if tag is not None:
                place = yield from self._value(call, tag)
            elif end := (yield from source.match(over, place)):
                return end.end()
            elif (yield from source.match(call.ends, place)):
                return place
            elif found := (yield from source.match(pair, place, call.known)):
                call.end(found["key"], "".join(found.captures("short")), quoted=False)
                place = yield from source.passed(found.end(), ("/>", ">"))
                if source.text.endswith("/>", 0, place):
                    return place
            else:
                raise BrokenError("the call does not go on")

    def _value(self, call: Call, tag: regex.Match[str]) -> Waiting[int]:
        """The value after a tag; returns where it ends, with the tag that ends it."""
        source, groups, start = call.source, tag.groupdict(), tag.end()
        if "|" in tag[0]:  # a control token twice is a slip, and any other tag may be the value's
            start = yield from source.passed(start, (tag[0].strip(),), often=True)
        key, is_raw = (groups["key"] or "").strip(), groups.get("raw") is not None
        is_json = groups.get("kind") not in (None, self.kinds[0])
        grow = None if is_json else call.begin(key, quoted=False)
        missing = [each for each in call.missing if each != key]
        end = r"\]\]>\s*</param>" if is_raw else self.end.replace("{key}", regex.escape(key))
        stops = (
            rf"(?P<end>{end})|(?P<over>{self.over})|(?P<close>{call.marks.ends})"
            rf"|(?P<tag>{self.tag})|(?P<half>{self.half})|(?P<begin>{call.marks.begins})"
            rf"|(?P<start>{call.marks.starts})"
        )
        search, sent, quoted = start, -1, {"end": 0, "over": 0, "close": 0}
        while True:
            stop = compiled(stops, missing).search(source.text, search, partial=not source.final)
            until = stop.start() if stop is not None else len(source.text)
            if grow is not None:
                sent = self._pass_on(grow, source.text, start, sent, until, is_raw)
            if stop is not None and (not stop.partial or len(source.text) - until >= LONGEST):
                stop = yield from source.match(stops, until, missing)
                if stop is not None and (
                    yield from self._stands(call, stop, is_raw, missing, quoted)
                ):
                    break
                search = until + 1  # the value quotes it
            elif source.final:
                source.kept = len(source.text)
                raise BrokenError("a value does not end")
            else:
                source.reach(until)
                search = until
                yield
        closed = stop["end"] is not None
        place = stop.end() if closed else until
        source.kept = place
        text = source.text[start:until]
        value: Any = self._stripped(text, is_raw, closed=closed)
        if grow is not None and sent >= 0:
            grow(source.text[sent : start + text.index(value) + len(value)])
            call.end(key, "")
        else:
            if is_json:
                try:
                    value = literal(value)
                except ValueError:
                    is_json = False
            call.end(key, value, quoted=is_raw or is_json)
        return place

    def _stands(
        self,
        call: Call,
        stop: regex.Match[str],
        is_raw: bool,
        missing: Sequence[str],
        quoted: dict[str, int],
    ) -> Waiting[bool]:
        """Whether what may end a value does: it does before something that can follow it, unless it
        belongs to what the value quotes."""
        source, marks = call.source, call.marks
        if stop["tag"] is not None or stop["half"] is not None:  # the end of this value is missing
            before = source.text[max(0, stop.start() - 80) : stop.start()].rstrip(" \t")
            key = next((each.strip() for each in stop.captures("key") if each), "")
            on_line = before[-1:] in ("\n", "") or not self.lines
            if key in missing and on_line and not is_raw and not any(quoted.values()):
                return True
            quoted["end"] += stop[0].startswith("<")
            return False
        for opening, closing in (("begin", "over"), ("start", "close")):
            if stop[opening] is not None:
                quoted[closing] += 1
                return False
        kind = next(kind for kind in quoted if stop[kind] is not None)
        nexts = rf"{marks.borders}|{{end}}"
        if kind == "end":
            nexts = rf"{self.tag}|{self.half}|(?:{self.over})(?:[^\"'`]|{{end}})|{nexts}"
        if quoted[kind]:  # it ends what the value quotes, unless it is the very end
            nexts = rf"(?:{self.over})?\s*(?:{marks.ends})?\s*(?:{marks.starts}|{{end}})"
        stands = yield from source.match(rf"\s*(?:{nexts})", stop.end(), call.known)
        quoted[kind] = max(0, quoted[kind] - 1)
        return stands is not None

    def _pass_on(
        self, grow: Any, text: str, start: int, sent: int, until: int, is_raw: bool
    ) -> int:
        """Passes on the part of a growing string that is certain; returns where that ends."""
        if sent >= 0:
            piece = text[sent:until].rstrip()
            grow(piece)
            return sent + len(piece)
        body = self._stripped(text[start:until], is_raw).rstrip()
        if "null".startswith(body.strip().lower()):
            return sent
        grow(body)
        return start + text[start:until].index(body) + len(body)

    def _stripped(self, text: str, is_raw: bool, *, closed: bool = True) -> str:
        """A value without the line breaks and the last line's indentation that lay it out; all
        other white space is its own, as that of indented code."""
        if not is_raw and not self.exact and (self.lines or text.startswith("\n")):
            text = _LAST_LINE.sub("", text.removeprefix("\n"))
        return text if closed else text.rstrip()


_LAST_LINE = regex.compile(r"\n[ \t]*+\Z")
_SHORT = r"""(?:"(?P<short>[^"]*)"|'(?P<short>[^']*)'|(?P<short>[^\s<>"']+))"""


# ---- literals ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literals:
    """A name and arguments in brackets, of which ``close`` is the second one; values are in a
    ``notation``."""

    head: str
    close: str
    notation: Notation

    def read(self, call: Call, place: int) -> Waiting[int]:
        head = yield from _begun(call.source, rf"\s*{self.head}", place)
        call.named(head["name"])
        close = rf"{regex.escape(self.close)}[^\S\n]*(?:[,;\]\n]|{call.marks.borders}|{{end}})"
        call.follow = call.after_string(self.close, close)
        return (yield from self.notation.members(call.source, head.end(), self.close, call))
