r"""Patterns of JSON schemas, which are ECMA-262's, as expressions of JSON text.

``parse`` reads a pattern as ECMA does with the flag ``u``, but takes what is harmless of other
dialects (``\-``, ``\A``, ``\Z``, ``(?P<name>...)``, ``(?i)`` at the beginning). ``spelled`` writes
what it matches as a terminal of Lark over JSON strings, quotes included, and ``searched`` as an
expression of Python's ``regex``. In JSON text a character has one spelling: itself, or its short
escape, or ``\u00..`` for other control characters.

Invariant: a JSON string with that spelling matches ``spelled`` if and only if the pattern is
found in its value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NoReturn, TypeAlias

from ...errors import GrammarError

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Characters, as ascending ranges that do not touch."""

_LAST = 0x10FFFF
_WAYS = 64  # ways in which a pattern may use its anchors
_MAX_REPEAT = 5000
_COSTLY = 2000  # repetitions within repetitions that the engine would keep apart
_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "v": 11, "f": 12, "0": 0}
_COUNTS = re.compile(r"\{(\d+)(,?)(\d*)\}")
_NAME = re.compile(r"P?<([A-Za-z_$][\w$]*)>")


class UnsupportedError(Exception):
    """The pattern is valid, but no automaton matches it, or none of a bearable size: it has a back
    reference, looks around, or has long repetitions within others."""


# ---- sets of characters ------------------------------------------------------------------------


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All characters of some ranges."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def others(ranges: Ranges) -> Ranges:
    """All characters but these."""
    found, at = [], 0
    for low, high in ranges:
        if at < low:
            found.append((at, low - 1))
        at = high + 1
    return (*found, (at, _LAST)) if at <= _LAST else tuple(found)


def _without(ranges: Ranges, out: Ranges) -> Ranges:
    return others(union((*others(ranges), *out)))


_DIGITS: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_BLANKS = (9, 10, 11, 12, 13, 32, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF)
_SPACE = union([*((code, code) for code in _BLANKS), (0x2000, 0x200A)])
_NEWLINES: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
_SETS = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_SURROGATES: Ranges = ((0xD800, 0xDFFF),)
ANY: Ranges = _without(((0, _LAST),), _SURROGATES)


@lru_cache(64)
def _of_property(name: str) -> Ranges:
    r"""The characters of ``\p{name}``."""
    import regex  # it knows all of them, and is asked once for each name

    try:
        found = regex.compile(rf"\p{{{name}}}")
    except regex.error:
        raise GrammarError(f"the pattern uses \\p{{{name}}}, which is not a property") from None
    return union((c, c) for c in range(_LAST + 1) if found.match(chr(c)))


def _either_case(ranges: Ranges) -> Ranges:
    both = list(ranges)
    for low, high in ranges:
        for code in range(low, min(high, 0x24F) + 1):
            for other in (chr(code).lower(), chr(code).upper()):
                both += [(ord(other), ord(other))] if len(other) == 1 else []
    return union(both)


# ---- what a pattern is made of -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chars:
    """One of some characters."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Seq:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of several."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """So many times."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """A group to which a back reference may refer."""

    part: Node
    number: int


@dataclass(frozen=True, slots=True)
class Edge:
    """The beginning or the end of the text."""

    is_end: bool


@dataclass(frozen=True, slots=True)
class Look:
    """What must follow (or come before) a place, or must not."""

    part: Node
    negated: bool
    behind: bool


@dataclass(frozen=True, slots=True)
class Odd:
    """A word boundary or a back reference, in Python's spelling; what it repeats, if anything."""

    text: str
    again: Node | None = None


Node: TypeAlias = Chars | Seq | Alt | Repeat | Group | Edge | Look | Odd


@lru_cache(512)
def parse(pattern: str) -> Node:
    """Reads a pattern. GrammarError if it is not valid."""
    try:
        return _Reader(pattern).whole()
    except RecursionError:
        raise GrammarError("the pattern is nested too deeply") from None


class _Reader:
    """A recursive descent parser; ``_at`` is the place in the pattern."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._groups = 0
        self._names: dict[str, int] = {}
        self._groups_read: dict[int, Node] = {}
        self._any_case = False
        self._dot = others(_NEWLINES)

    def whole(self) -> Node:
        if flags := re.match(r"\(\?([ims]+)\)", self._text):
            if "m" in flags[1]:
                raise UnsupportedError("the flag m")
            self._at = flags.end()
            self._any_case = "i" in flags[1]
            self._dot = ((0, _LAST),) if "s" in flags[1] else self._dot
        node = self._either()
        if self._at < len(self._text):
            self._fail("a ) without its (")
        return node

    def _either(self) -> Node:
        parts = [self._row()]
        while self._take("|"):
            parts.append(self._row())
        return parts[0] if len(parts) == 1 else Alt(tuple(parts))

    def _row(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(self._part()))
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _repeated(self, part: Node) -> Node:
        counts = _COUNTS.match(self._text, self._at)
        if self._take("*"):
            least, most = 0, None
        elif self._take("+"):
            least, most = 1, None
        elif self._take("?"):
            least, most = 0, 1
        elif counts:
            self._at = counts.end()
            least = int(counts[1])
            most = least if not counts[2] else int(counts[3]) if counts[3] else None
            if max(least, most or 0) > _MAX_REPEAT:
                self._fail(f"repetitions go up to {_MAX_REPEAT}")
            if most is not None and most < least:
                self._fail(f"{counts[0]} allows nothing")
        else:
            return part
        self._take("?")  # what is lazy matches the same texts
        if self._text[self._at : self._at + 1] in ("*", "+", "?") and self._at < len(self._text):
            self._fail(f"nothing to repeat before {self._text[self._at]!r}")
        return Repeat(part, least, most)

    def _part(self) -> Node:
        char = self._text[self._at]
        self._at += 1
        if char == "(":
            return self._group()
        if char == "[":
            return Chars(self._cased(self._class()))
        if char == ".":
            return Chars(self._dot)
        if char in "^$":
            return Edge(char == "$")
        if char in "*+?":
            self._fail(f"nothing to repeat before {char!r}")
        if char == "\\":
            return self._escaped()
        return Chars(self._cased(((ord(char), ord(char)),)))

    def _cased(self, ranges: Ranges) -> Ranges:
        return _either_case(ranges) if self._any_case else ranges

    def _group(self) -> Node:
        for start, negated, behind in (
            ("?=", False, False), ("?!", True, False), ("?<=", False, True), ("?<!", True, True),
        ):  # fmt: skip
            if self._take(start):
                return Look(self._closed(), negated, behind)
        if self._take("?:"):
            return self._closed()
        self._groups += 1
        number = self._groups
        if self._take("?"):
            name = _NAME.match(self._text, self._at)
            if name is None:
                self._fail("a group of an unknown kind: (?")
            self._at = name.end()
            self._names[name[1]] = number
        part = self._groups_read[number] = self._closed()
        return Group(part, number)

    def _closed(self) -> Node:
        node = self._either()
        if not self._take(")"):
            self._fail("unclosed group")
        return node

    def _escaped(self) -> Node:
        char = self._text[self._at : self._at + 1]
        if char in ("b", "B"):
            self._at += 1
            return Odd(f"\\{char}")
        if char in ("A", "Z", "z"):
            self._at += 1
            return Edge(char != "A")
        if digits := re.compile(r"[1-9]\d*").match(self._text, self._at):
            self._at = digits.end()
            return Odd(f"(?:\\{digits[0]})", self._groups_read.get(int(digits[0])))
        if char == "k" and (name := re.compile(r"k<([^>]+)>").match(self._text, self._at)):
            self._at = name.end()
            if name[1] not in self._names:
                self._fail(f"there is no group {name[1]!r}")
            number = self._names[name[1]]
            return Odd(f"(?:\\{number})", self._groups_read.get(number))
        return Chars(self._cased(self._set_or_code()))

    def _set_or_code(self) -> Ranges:
        """What follows a backslash, if it is a character or a set of them."""
        char = self._text[self._at : self._at + 1]
        if not char:
            self._fail("a backslash at its end")
        self._at += 1
        if char.lower() in _SETS:
            found = _SETS[char.lower()]
            return found if char.islower() else others(found)
        if char in "pP" and (name := re.compile(r"\{([^}]+)\}").match(self._text, self._at)):
            self._at = name.end()
            found = _of_property(name[1])
            return found if char == "p" else others(found)
        code = self._code(char)
        return ((code, code),)

    def _code(self, char: str) -> int:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "c" and (letter := re.compile("[A-Za-z]").match(self._text, self._at)):
            self._at += 1
            return ord(letter[0]) % 32
        for start, digits in (("u", r"\{([0-9A-Fa-f]+)\}"), ("u", "([0-9A-Fa-f]{4})"),
                              ("x", "([0-9A-Fa-f]{2})"), ("x", r"\{([0-9A-Fa-f]+)\}"),
                              ("U", "([0-9A-Fa-f]{8})")):  # fmt: skip
            if char == start and (number := re.compile(digits).match(self._text, self._at)):
                self._at = number.end()
                code = int(number[1], 16)
                low = re.compile(r"\\u([dD][c-fC-F][0-9A-Fa-f]{2})").match(self._text, self._at)
                if 0xD800 <= code < 0xDC00 and low:  # a pair
                    self._at = low.end()
                    return 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
                if code > _LAST:
                    self._fail(f"\\{start}{{{number[1]}}} is not a character")
                return code
        return ord(char)

    def _class(self) -> Ranges:
        negated = self._take("^")
        found: list[tuple[int, int]] = []
        while not self._take("]"):
            low = self._in_class()
            dash = self._text[self._at : self._at + 1] == "-"
            if dash and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._in_class()
                if _is_one(low) and _is_one(high):
                    if high[0][0] < low[0][0]:
                        self._fail("a range whose end comes before its beginning")
                    found.append((low[0][0], high[0][0]))
                else:  # a set beside a dash
                    found += (*low, (45, 45), *high)
            else:
                found += low
        ranges = union(found)
        return others(self._cased(ranges)) if negated else ranges

    def _in_class(self) -> Ranges:
        char = self._text[self._at : self._at + 1]
        if not char:
            self._fail("unclosed class")
        self._at += 1
        if char != "\\":
            return ((ord(char), ord(char)),)
        if self._take("b"):
            return ((8, 8),)
        return self._set_or_code()

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _fail(self, what: str) -> NoReturn:
        raise GrammarError(f"the pattern {self._text} is not valid: {what}")


def _is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


# ---- as an expression of JSON text -------------------------------------------------------------


def _code(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\x{{{code:x}}}"


def _class(ranges: Ranges) -> str:
    return "".join(_code(a) if a == b else f"{_code(a)}-{_code(b)}" for a, b in ranges)


@lru_cache(1024)
def char_text(ranges: Ranges) -> str:
    """An expression for the JSON spellings of these characters."""
    plain = _without(ranges, ((0, 31), (34, 34), (92, 92), *_SURROGATES))
    special = [c for a, b in ranges for c in range(a, min(b, 92) + 1) if c < 32 or c in (34, 92)]
    short = "".join(_code(ord(_SHORT[c])) for c in special if c in _SHORT)
    long = [f"{c:02x}" for c in special if c not in _SHORT]
    parts = [f"[{_class(plain)}]"] if plain else []
    parts += [f"\\\\[{short}]"] if short else []
    if long:
        either = "|".join(
            "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in x) for x in long
        )
        parts.append(f"\\\\u00(?:{either})")
    if not parts:
        return "[^\\s\\S]"
    return parts[0] if len(parts) == 1 and plain else f"(?:{'|'.join(parts)})"


ANY_CHAR = char_text(ANY)

_SCALAR = (
    r"\\u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
FREE_CHAR = rf"(?:{char_text(_without(ANY, ((0, 31),)))}|\\[bfnrt]|{_SCALAR})"
"""A character of a text about which nothing is said but its length: any escape will do."""


@dataclass(frozen=True, slots=True)
class _Way:
    """An expression, whether it may match nothing, and whether it has to begin or end the text."""

    text: str
    empty: bool
    starts: bool = False
    ends: bool = False


def spelled(pattern: str, *, loose: bool = False) -> str:
    """The JSON strings in which a pattern is found, as a terminal of Lark.

    GrammarError if it is not valid, UnsupportedError if no automaton matches it. ``loose``: then
    some others as well, as if it did not look around.
    """
    node = parse(pattern)
    while isinstance(node, Group):
        node = node.part
    options = node.parts if isinstance(node, Alt) else (node,)
    if not any(_looks(option) for option in options):
        return _quoted(_found(_ways(node, loose)))
    return " | ".join(_with_looks(option, loose) for option in options)


def _with_looks(node: Node, loose: bool) -> str:
    """An option that may begin with what must follow the beginning of the text."""
    parts = list(node.parts) if isinstance(node, Seq) else [node]
    looks: list[Look] = []
    if parts and parts[0] == Edge(is_end=False):
        while len(parts) > 1 and isinstance(look := parts[1], Look) and not look.behind:
            looks.append(look)
            del parts[1]
    texts = [_quoted(_found(_ways(Seq(tuple(parts)), loose)))]
    for look in looks:
        at_start = Seq((Edge(is_end=False), look.part))
        try:
            texts.append(f"{'~' if look.negated else ''}{_quoted(_found(_ways(at_start)))}")
        except UnsupportedError:
            if not loose:
                raise
    return " & ".join(texts)


def _looks(node: Node) -> bool:
    if isinstance(node, Look):
        return True
    if isinstance(node, Repeat | Group):
        return _looks(node.part)
    return isinstance(node, Seq | Alt) and any(map(_looks, node.parts))


def _quoted(text: str) -> str:
    return f"/\\x{{22}}{text}\\x{{22}}/"


def _found(ways: Sequence[_Way]) -> str:
    """Texts that are found in one of these ways."""
    if not ways:
        return "[^\\s\\S]"
    around = f"{ANY_CHAR}*"
    texts = [
        f"{'' if way.starts else around}{way.text}{'' if way.ends else around}" for way in ways
    ]
    return texts[0] if len(texts) == 1 else f"(?:{'|'.join(texts)})"


def _ways(node: Node, loose: bool = False) -> list[_Way]:
    if isinstance(node, Chars):
        return [_Way(char_text(node.ranges), empty=False)]
    if isinstance(node, Edge):
        return [_Way("", empty=True, starts=not node.is_end, ends=node.is_end)]
    if isinstance(node, Group):
        return _ways(node.part, loose)
    if isinstance(node, Alt):
        return _joined([way for part in node.parts for way in _ways(part, loose)])
    if isinstance(node, Repeat):
        return _repeated(node, loose)
    if isinstance(node, Seq):
        ways = [_Way("", empty=True)]
        for part in node.parts:
            ways = [
                w for a, b in product(ways, _ways(part, loose)) if (w := _then(a, b)) is not None
            ]
            ways = _joined(ways) if len(ways) > 1 else ways
        return ways
    if not loose:
        raise UnsupportedError("a look around" if isinstance(node, Look) else "a back reference")
    again = node.again if isinstance(node, Odd) else None
    return [_Way("", empty=True)] if again is None else _ways(again, loose)


def _then(first: _Way, second: _Way) -> _Way | None:
    """One after the other; None if their anchors do not allow it."""
    if (second.starts and not first.empty) or (first.ends and not second.empty):
        return None
    one = "" if second.starts else first.text
    two = "" if first.ends else second.text
    empty = first.empty and second.empty
    return _Way(one + two, empty, first.starts or second.starts, first.ends or second.ends)


def _joined(ways: Sequence[_Way]) -> list[_Way]:
    """The same ways, one for each use of the anchors."""
    kinds: dict[tuple[bool, bool], list[_Way]] = {}
    for way in ways:
        kinds.setdefault((way.starts, way.ends), []).append(way)
    joined = []
    for (starts, ends), alike in kinds.items():
        texts = list(dict.fromkeys(way.text for way in alike))
        text = texts[0] if len(texts) == 1 else f"(?:{'|'.join(texts)})"
        joined.append(_Way(text, any(way.empty for way in alike), starts, ends))
    return joined


def _counted(node: Node) -> int:
    """How often a part of a repetition may come again before it is its next turn."""
    if isinstance(node, Repeat):
        varies = node.most is not None and node.most != node.least
        return (node.most or 1 if varies else 1) * _counted(node.part)
    if isinstance(node, Group | Look):
        return _counted(node.part)
    return max(map(_counted, node.parts), default=1) if isinstance(node, Seq | Alt) else 1


def _repeated(node: Repeat, loose: bool) -> list[_Way]:
    ways = _ways(node.part, loose)
    most = node.most
    if any(way.starts or way.ends for way in ways):
        if any(not (way.starts or way.ends) for way in ways) and most != 1:
            if loose:
                return [_Way(f"{ANY_CHAR}*", empty=True)]
            raise UnsupportedError("an anchor in a repetition")
        some = ways if most != 0 else []  # more than one of them would have to be empty
        return _joined([*some, _Way("", empty=True)] if node.least == 0 else some)
    if not ways:
        return [_Way("", empty=True)] if node.least == 0 else []
    if most is not None and most != node.least and most * _counted(node.part) > _COSTLY:
        if not loose:
            raise UnsupportedError("long repetitions within a repetition")
        most = None
    counts = f"{{{node.least},{'' if most is None else most}}}"
    counts = {"{0,}": "*", "{1,}": "+", "{0,1}": "?"}.get(counts, counts)
    return [_Way(f"(?:{ways[0].text}){counts}", ways[0].empty or node.least == 0)]


# ---- as an expression of Python's regex --------------------------------------------------------


@lru_cache(512)
def searched(pattern: str) -> str:
    """The same pattern for ``regex.search``. GrammarError if it is not valid."""
    return _python(parse(pattern))


def _python(node: Node) -> str:
    if isinstance(node, Chars):
        codes = [f"\\U{a:08x}-\\U{b:08x}" for a, b in node.ranges]
        return f"[{''.join(codes)}]" if codes else "(?!)"
    if isinstance(node, Edge):
        return r"\Z" if node.is_end else r"\A"
    if isinstance(node, Odd):
        return {r"\b": r"(?a:\b)", r"\B": r"(?a:\B)"}.get(node.text, node.text)
    if isinstance(node, Repeat):
        counts = f"{{{node.least},{'' if node.most is None else node.most}}}"
        return f"(?:{_python(node.part)}){counts}"
    if isinstance(node, Group):
        return f"({_python(node.part)})"
    if isinstance(node, Look):
        sign = ("<" if node.behind else "") + ("!" if node.negated else "=")
        return f"(?{sign}{_python(node.part)})"
    join: Callable[[Iterable[str]], str] = ("|" if isinstance(node, Alt) else "").join
    return f"(?:{join(map(_python, node.parts))})"
