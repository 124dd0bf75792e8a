"""The four ways in which models write a call, as values from which it is read, written and held.

Each style has the pieces that its makers publish, of which ``write`` makes text and the grammar
makes rules, and the patterns by which it is read, which know the slips. A piece is a mark or text;
``{name}`` in it is the function's name, and ``{index}`` the number of the call.

In all styles, ``first``, ``again`` and ``tail`` are what may come before the first call, between
two and after the last, besides white space, and ``begins`` how a call begins. ``read`` reads the
call at a place and returns where it ends, and ``write`` writes calls without the marks around them
all. Invariant: what ``write`` writes is read as what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import regex

from .call import Call
from .values import (
    JSON,
    LONGEST,
    BrokenError,
    Follow,
    Notation,
    Source,
    Waiting,
    compiled,
    dumped,
    literal,
)

Pieces: TypeAlias = tuple[str, ...]
ARGUMENTS = "{arguments}"  # the piece that is replaced by all arguments


def filled(pieces: Pieces, name: str, index: int = 0, arguments: str = "") -> str:
    """The text of some pieces."""
    text = "".join(pieces).replace("{index}", str(index)).replace("{name}", name)
    return text.replace(ARGUMENTS, arguments)


def any_of(texts: Iterable[str]) -> str:
    """A pattern of some texts, the longest first."""
    return "|".join(map(regex.escape, sorted(texts, key=len, reverse=True))) or "(?!)"


def _matched(source: Source, pattern: str, place: int) -> Waiting[regex.Match[str]]:
    match = yield from source.match(compiled(pattern), place)
    if match is None or match.partial:
        raise BrokenError("no call begins here")
    return match


def _follow(call: Call, close: str) -> Follow:
    """What comes after a string that is an argument of a call."""
    close = regex.escape(close)
    key = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[\w$.-]+)\s*[:=]"""
    return Follow(rf"\s*(?:,\s*(?:{key}|{close})|{close}|{call.marks.borders}|{{end}})")


def _object(call: Call, place: int) -> Waiting[int]:
    """Arguments as one JSON object, or as text that holds one; nothing, if a mark comes at once."""
    source = call.source
    place = yield from source.space(place)
    first = yield from source.at(place)
    if first == "{":
        return (yield from JSON.members(source, place + 1, "}", call.given, _follow(call, "}")))
    if (yield from call.ends(place)):
        return place
    value, place = yield from JSON.value(source, place, Follow(r"\s*(?:[,}\]]|{end})"))
    if isinstance(value, str):
        value = literal(value) if value.strip() else None
    give(call, value)
    return place


def give(call: Call, value: Any) -> None:
    """Gives a call arguments that were read as one value."""
    value = value or {}  # nothing, however it is written
    if not isinstance(value, dict):
        raise BrokenError("the arguments are not an object")
    for key, each in value.items():
        call.given.end(str(key), each)


# ---- objects with a name -------------------------------------------------------------------------

_NAMES = frozenset({"name", "tool_name", "function", "tool", "function_name"})
_HOLDS = frozenset({"arguments", "parameters", "args", "input"})
_IDS = frozenset({"id", "tool_call_id", "call_id"})
_SAYS_NOTHING = frozenset({"type", "index"})
_KNOWN = _NAMES | _HOLDS | _IDS | _SAYS_NOTHING


@dataclass(frozen=True, slots=True)
class Objects:
    """``{"name": ..., "arguments": {...}}``, one after the other or in a list.

    ``keys`` are what the two parts are called; without a first one, the name is the key of the
    arguments. ``opening`` comes before the first.
    """

    keys: tuple[str, str] = ("name", "arguments")
    is_list: bool = False
    opening: str = ""
    first: Pieces = ("[", "```json", "```")
    again: Pieces = (",", ";")
    tail: Pieces = (",", "]", "}", "```")
    begins: Pieces = ("{",)

    def read(self, call: Call, place: int) -> Waiting[int]:
        source, wrapped, held = call.source, 0, None
        done = others = False  # whether its arguments were read, and whether there was more
        place = (yield from _matched(source, r"\s*\{(?:\s*\{)?(?=\s*[^\s{])", place)).end()
        while True:
            place = yield from source.space(place)
            if (yield from source.at(place)) == "}":
                place += 1
                if not wrapped:
                    break
                wrapped -= 1
            else:
                key, place = yield from JSON.value(source, place, Follow(r"\s*:"))
                place = (yield from _matched(source, r"\s*:\s*(?=\S)", place)).end()
                if not isinstance(key, str):
                    raise BrokenError("a key is not a string")
                if key in _NAMES and source.text[place] == "{":
                    wrapped, place = wrapped + 1, place + 1
                    continue
                if not self.keys[0] and call.name is None:
                    call.named(key)
                    place, done = (yield from _object(call, place)), True
                elif key in _HOLDS and call.name is not None and not done:
                    place, done = (yield from _object(call, place)), True
                elif call.name is None and key not in _KNOWN:
                    raise BrokenError("an object that is no call")
                else:
                    value, place = yield from JSON.value(source, place, _MEMBER)
                    if key in _NAMES and call.name is None and isinstance(value, str):
                        call.named(value)
                    elif key in _HOLDS:
                        held = value
                    elif key in _IDS and isinstance(value, str):
                        call.id = value
                    elif key not in _SAYS_NOTHING:
                        others = True
            place = yield from source.space(place)
            after = yield from source.at(place)
            if after == ",":
                place += 1
            elif after != "}":
                if not (done and (yield from call.ends(place))):
                    raise BrokenError("the call does not go on")
                break
        if call.name is None or (others and not done and held is None):
            raise BrokenError("the call has no name, or its arguments are somewhere else")
        if held and not done:
            give(call, literal(held) if isinstance(held, str) else held)
        return place

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        first, second = self.keys
        texts = [
            f"{{{dumped(first)}: {dumped(name)}, {dumped(second)}: {dumped(dict(arguments))}}}"
            if first
            else f"{{{dumped(name)}: {dumped(dict(arguments))}}}"
            for name, arguments in calls
        ]
        return f"{self.opening}[{', '.join(texts)}]" if self.is_list else "\n".join(texts)


_MEMBER = Follow(r"\s*(?:[,}\]]|{end})")


# ---- a head, and one object ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Headed:
    """The name in a head of its own, and the arguments as one JSON object.

    ``pieces`` are those of a whole call, and ``between`` comes between two; ``head`` is
    the pattern of what comes before the object, and ``close`` what may come after it.
    """

    pieces: Pieces
    head: str
    close: Pieces = ()
    between: str = ""
    first: Pieces = ()
    again: Pieces = ()
    tail: Pieces = ()
    begins: Pieces = ()

    def read(self, call: Call, place: int) -> Waiting[int]:
        head = yield from _matched(call.source, rf"\s*{self.head}", place)
        groups = head.groupdict()
        call.named(head["name"], groups.get("id"))
        place = yield from call.source.passed(head.end(), self.close)
        if place > head.end():  # without arguments
            return place
        place = yield from _object(call, place)
        return (yield from call.source.passed(place, self.close))

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        return self.between.join(
            filled(self.pieces, name, i, dumped(dict(arguments)))
            for i, (name, arguments) in enumerate(calls)
        )


# ---- arguments between tags ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """Each argument between tags, strings as they are.

    - ``open``, ``close``: around all arguments of a call; ``key``: before a value, with ``{key}``
      and perhaps ``{kind}``, one of the two ``kinds``, in it; ``after``: after the value.
    - ``head`` and ``tag``: the patterns of what is read as ``open`` and as ``key``; a tag may say
      the ``kind`` of its value. ``half``: a tag of which something is missing, if its key is known.
    - ``end`` and ``over``: the tags after a value, with its ``{key}``, and after all of them.
    - ``body`` and ``body_end``: around arguments that are one JSON object instead, if anything is.
    - ``lines``: a value has lines of its own; else the white space around it means nothing, unless
      it is ``exact``.
    """

    open: Pieces
    key: Pieces
    after: Pieces
    close: Pieces = ()
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
    first: Pieces = ()
    again: Pieces = ()
    tail: Pieces = ()
    begins: Pieces = ()

    def read(self, call: Call, place: int) -> Waiting[int]:
        source = call.source
        head = yield from _matched(source, rf"\s*{self.head}", place)
        call.named(head["name"])
        keys = call.given.known
        place = yield from source.passed(head.end(), (head[0].strip(),), often=True)
        body = yield from source.match(compiled(rf"\s*(?:{self.body})?\s*(?=\{{)"), place)
        if body is not None and not body.partial:
            place = yield from _object(call, body.end())
            place = yield from source.passed(place, self.body_end)
        tags = (compiled(rf"\s*(?:{self.tag})"), compiled(rf"\s*(?:{self.half})", keys))
        pair = compiled(rf"\s*(?P<key>\L<keys>)\s*=\s*{_SHORT}(?=[\s<>/])", keys)
        while True:
            found = None
            for tag in tags:
                if found is None or found.partial:
                    found = yield from source.match(tag, place)
            if found is not None and not found.partial:
                place = yield from self._value(call, found)
                continue
            over = yield from source.match(compiled(rf"\s*(?:{self.over})"), place)
            if over is not None and not over.partial:
                return over.end()
            if (yield from call.ends(place)):
                return place
            found = yield from source.match(pair, place)
            if found is None or found.partial:
                raise BrokenError("the call does not go on")
            call.given.end(found["key"], "".join(found.captures("short")), quoted=False)
            place = yield from source.passed(found.end(), ("/>", ">"))
            if source.text.endswith("/>", 0, place):
                return place

    def _value(self, call: Call, tag: regex.Match[str]) -> Waiting[int]:
        """The value after a tag; returns where it ends, with the tag that ends it."""
        source, groups, start = call.source, tag.groupdict(), tag.end()
        if "|" in tag[0]:  # a control token twice is a slip, and any other tag may be the value's
            start = yield from source.passed(start, (tag[0].strip(),), often=True)
        key, is_raw = (groups["key"] or "").strip(), groups.get("raw") is not None
        is_json = groups.get("kind") not in (None, self.kinds[0])
        grow = None if is_json else call.given.begin(key, quoted=False)
        missing = [each for each in call.given.missing if each != key]
        end = r"\]\]>\s*</param>" if is_raw else self.end.replace("{key}", regex.escape(key))
        stops = compiled(
            rf"(?P<end>{end})|(?P<over>{self.over})|(?P<close>{call.marks.ends})"
            rf"|(?P<tag>{self.tag})|(?P<half>{self.half})|(?P<begin>{any_of(self.begins)})"
            rf"|(?P<start>{call.marks.starts})",
            missing,
        )
        search, sent, quoted = start, -1, {"end": 0, "over": 0, "close": 0}
        while True:
            stop = stops.search(source.text, search, partial=not source.final)
            until = stop.start() if stop is not None else len(source.text)
            if grow is not None:
                sent = self._pass_on(grow, source.text, start, sent, until, is_raw)
            if stop is not None and (not stop.partial or len(source.text) - until >= LONGEST):
                stop = yield from source.match(stops, until)
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
            call.given.end(key, "")
        else:
            if is_json:
                try:
                    value = literal(value)
                except ValueError:
                    is_json = False
            call.given.end(key, value, quoted=is_raw or is_json)
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
        stands = yield from Follow(rf"\s*(?:{nexts})", call.given.known).comes(source, stop.end())
        quoted[kind] = max(0, quoted[kind] - 1)
        return stands

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
        if is_raw or self.exact:
            return text if closed else text.rstrip()
        return text.removeprefix("\n").removesuffix("\n") if self.lines else text.strip()

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        texts = []
        for i, (name, arguments) in enumerate(calls):
            inner = "".join(self._written(key, value) for key, value in arguments.items())
            texts.append(filled(self.open, name, i) + inner + filled(self.close, name, i))
        return "\n".join(texts)

    def _written(self, key: str, value: Any) -> str:
        kind = self.kinds[not isinstance(value, str)]
        tag = "".join(self.key).replace("{key}", key).replace("{kind}", kind)
        return f"{tag}{value if isinstance(value, str) else dumped(value)}{''.join(self.after)}"


_SHORT = r"""(?:"(?P<short>[^"]*)"|'(?P<short>[^']*)'|(?P<short>[^\s<>"']+))"""


# ---- literals ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Literals:
    """A name, and ``key=value`` or ``key:value`` between brackets, values as Python or as Gemma
    writes them.

    ``brackets`` surround the arguments, ``signs`` stand after a key and between two arguments;
    ``around`` and ``between`` are around all calls and between two.
    """

    head: str
    brackets: str
    signs: tuple[str, str]
    notation: Notation
    around: tuple[str, str] = ("", "")
    between: str = ""
    before: str = ""
    first: Pieces = ()
    again: Pieces = (",",)
    tail: Pieces = ()
    begins: Pieces = ()

    def read(self, call: Call, place: int) -> Waiting[int]:
        head = yield from _matched(call.source, rf"\s*{self.head}", place)
        call.named(head["name"])
        close = regex.escape(self.brackets[1])
        key = rf"(?:[\w$.-]+|\"[^\"\n]*\"|'[^'\n]*')\s*{self.signs[0]}"
        ended = rf"{close}[^\S\n]*(?:[,;\]\n]|{call.marks.borders}|{{end}})"
        follow = Follow(rf"\s*(?:,\s*(?:{key}|{close})|{ended})")
        return (
            yield from self.notation.members(
                call.source, head.end(), self.brackets[1], call.given, follow
            )
        )

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        texts = [self._written(name, arguments) for name, arguments in calls]
        return self.around[0] + self.between.join(texts) + self.around[1]

    def _written(self, name: str, arguments: Mapping[str, Any]) -> str:
        sign, comma = self.signs
        inner = comma.join(f"{key}{sign}{self._literal(v)}" for key, v in arguments.items())
        return f"{self.before}{name}{self.brackets[0]}{inner}{self.brackets[1]}"

    def _literal(self, value: Any) -> str:
        python, quote, comma = self.notation.python, self.notation.raw, self.signs[1]
        if isinstance(value, dict):
            keys = ((f"{dumped(key)}: " if python else f"{key}:", v) for key, v in value.items())
            return f"{{{comma.join(f'{key}{self._literal(v)}' for key, v in keys)}}}"
        if isinstance(value, list):
            return f"[{comma.join(map(self._literal, value))}]"
        if python and (value is None or isinstance(value, bool)):
            return str(value)
        return f"{quote}{value}{quote}" if quote and isinstance(value, str) else dumped(value)


Style: TypeAlias = Objects | Headed | Tagged | Literals
