r"""Patterns of JSON schemas, which are ECMA-262's, as expressions of Python and of JSON text.

``searched`` writes a pattern as Python's ``regex`` and ``re`` read it, with each class and escape
written out. It reads what ECMA does with the flag ``u``, and what is harmless of other dialects
(``\-``, ``\A``, ``\Z``, ``(?P<name>...)``, ``(?i)`` at the beginning). ``spelled`` has Python's own
parser read that, and writes what it matches as a terminal of Lark over JSON strings, quotes
included.

Invariant: a JSON string with that spelling matches ``spelled`` if and only if the pattern is
found in its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import product
from typing import Any, NoReturn, TypeAlias

from ...errors import GrammarError
from .characters import (
    ANY_CHAR,
    LAST,
    NEWLINES,
    NOTHING,
    SETS,
    Ranges,
    char_text,
    class_of,
    either_case,
    is_one,
    of_property,
    others,
    union,
)

Part: TypeAlias = tuple[Any, Any]
"""What Python's parser makes of a part of a pattern: what it is, and of what."""

op: Any = import_module("re._constants")  # which type checkers do not know
_parser: Any = import_module("re._parser")

_MAX_REPEAT = 5000
_COSTLY = 2000  # repetitions within repetitions that the engine would keep apart
_CONTROLS = {"n": 10, "r": 13, "t": 9, "v": 11, "f": 12, "0": 0}

_HEX = "[0-9a-fA-F]"
_ESCAPE = (
    r"\\(?:(?P<set>[dDwWsS])|(?P<property>[pP]\{[^}]+\})"
    rf"|u(?P<pair>[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}})"
    rf"|u(?P<four>{_HEX}{{4}})|x(?P<two>{_HEX}{{2}})|U(?P<eight>{_HEX}{{8}})"
    rf"|[ux]\{{(?P<any>{_HEX}+)\}}|c(?P<control>[A-Za-z])|(?P<other>.))"
)
_CHARS = re.compile(rf"{_ESCAPE}|(?P<char>.)", re.DOTALL)
_PART = re.compile(
    r"(?P<edge>[\^$]|\\[AZz])|(?P<word>\\[bB])|\\(?P<back>[1-9]\d*)|\\k<(?P<again>[^>]+)>"
    rf"|(?P<escape>{_ESCAPE})|\[(?P<class>\^?)"
    r"|(?P<look>\(\?(?:[:=!]|<[=!]))|\(\?P?<(?P<name>[A-Za-z_$][\w$]*)>|(?P<odd>\(\?)"
    r"|(?P<repeat>[*+?]|\{(?P<least>\d+)(?P<comma>,?)(?P<most>\d*)\})|(?P<plain>[()|])"
    r"|(?P<dot>\.)|(?P<char>.)",
    re.DOTALL,
)
_LOOKS = (op.ASSERT, op.ASSERT_NOT)
_SAID = {  # by Python, and by us
    "missing ), unterminated subpattern": "unclosed group",
    "unbalanced parenthesis": "a ) without its (",
}


class UnsupportedError(Exception):
    """The pattern is valid, but no automaton matches it, or none of a bearable size: it has a back
    reference, looks around, or has long repetitions within others."""


# ---- as Python reads it ------------------------------------------------------------------------


def searched(pattern: str) -> str:
    """The same pattern for ``regex.search``. GrammarError if it is not valid."""
    return _read(pattern)[0]


@lru_cache(512)
def _read(pattern: str) -> tuple[str, Sequence[Part]]:
    """A pattern in Python's spelling, and its parts."""
    text = _Translation(pattern).text()
    try:
        parts: Sequence[Part] = _parser.parse(text).data
    except re.error as error:
        what = _SAID.get(error.msg, error.msg)
        raise GrammarError(f"the pattern {pattern} is not valid: {what}") from None
    except RecursionError:
        raise GrammarError("the pattern is nested too deeply") from None
    return text, parts


class _Translation:
    """A pattern on its way to Python's spelling; ``_at`` is the place in it."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        flags = re.match(r"\(\?([ims]+)\)", pattern)
        if flags and "m" in flags[1]:
            raise UnsupportedError("the flag m")
        self._at = flags.end() if flags else 0
        self._any_case = bool(flags and "i" in flags[1])
        self._dot = ((0, LAST),) if flags and "s" in flags[1] else others(NEWLINES)
        self._groups: list[str | None] = []  # their names

    def text(self) -> str:
        text = ""
        while part := _PART.match(self._pattern, self._at):
            self._at = part.end()
            text += self._part(part)
        return text

    def _part(self, part: re.Match[str]) -> str:
        kind, text = part.lastgroup, part[0]
        if kind == "edge":
            return r"(?:\A)" if text in ("^", r"\A") else r"(?:\Z)"
        if kind == "word":
            return f"(?a:{text})"
        if kind == "back":
            return f"(?:{text})"
        if kind == "again":
            if part["again"] not in self._groups:
                self._fail(f"there is no group {part['again']!r}")
            return rf"(?:\{self._groups.index(part['again']) + 1})"
        if kind == "odd":
            self._fail("a group of an unknown kind: (?")
        if kind == "name" or text == "(":
            self._groups.append(part["name"])
            return "("
        if kind in ("look", "plain"):
            return text
        if kind == "repeat":
            return self._repeat(part)
        if kind == "class":
            return class_of(self._class(negated=bool(part["class"])))
        if kind == "dot":
            return class_of(self._dot)
        self._at = part.start()
        return class_of(self._cased(self._chars("a backslash at its end")))

    def _repeat(self, part: re.Match[str]) -> str:
        least, most = int(part["least"] or 0), int(part["most"] or 0)
        if max(least, most) > _MAX_REPEAT:
            self._fail(f"repetitions go up to {_MAX_REPEAT}")
        if part["most"] and most < least:
            self._fail(f"{part[0]} allows nothing")
        if self._pattern.startswith("?", self._at):  # what is lazy matches the same texts
            self._at += 1
        after = self._pattern[self._at : self._at + 1]
        if after and after in "*+?":
            self._fail(f"nothing to repeat before {after!r}")
        return part[0]

    def _chars(self, missing: str) -> Ranges:
        """The next character, or what the next escape means."""
        part = _CHARS.match(self._pattern, self._at)
        if part is None or part[0] == "\\":
            self._fail(missing)
        self._at = part.end()
        kind, text = part.lastgroup, part[part.lastgroup or 0]
        if kind == "set":
            return SETS[text] if text.islower() else others(SETS[text.lower()])
        if kind == "property":
            found = of_property(text[2:-1])
            return found if text[0] == "p" else others(found)
        if kind == "pair":
            code = 0x10000 + ((int(text[:4], 16) - 0xD800) << 10) + int(text[6:], 16) - 0xDC00
        elif kind == "control":
            code = ord(text) % 32
        elif kind == "other":
            code = _CONTROLS.get(text, ord(text))
        else:
            code = ord(text) if kind == "char" else int(text, 16)
        if code > LAST:
            self._fail(f"{part[0]} is not a character")
        return ((code, code),)

    def _class(self, *, negated: bool) -> Ranges:
        found: list[tuple[int, int]] = []
        while not self._takes("]"):
            low = self._in_class()
            if self._pattern[self._at : self._at + 1] == "-" and (
                self._pattern[self._at + 1 : self._at + 2] not in ("]", "")
            ):
                self._at += 1
                high = self._in_class()
                if is_one(low) and is_one(high):
                    if high[0][0] < low[0][0]:
                        self._fail("a range whose end comes before its beginning")
                    found.append((low[0][0], high[0][0]))
                else:  # a set beside a dash
                    found += (*low, (45, 45), *high)
            else:
                found += low
        ranges = self._cased(union(found))
        return others(ranges) if negated else ranges

    def _in_class(self) -> Ranges:
        return ((8, 8),) if self._takes(r"\b") else self._chars("unclosed class")

    def _cased(self, ranges: Ranges) -> Ranges:
        return either_case(ranges) if self._any_case else ranges

    def _takes(self, text: str) -> bool:
        taken = self._pattern.startswith(text, self._at)
        self._at += len(text) if taken else 0
        return taken

    def _fail(self, what: str) -> NoReturn:
        raise GrammarError(f"the pattern {self._pattern} is not valid: {what}")


# ---- as an expression of JSON text -------------------------------------------------------------


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
    parts = _read(pattern)[1]
    while len(parts) == 1 and parts[0][0] is op.SUBPATTERN:
        parts = parts[0][1][-1]
    one = len(parts) == 1 and parts[0][0] is op.BRANCH
    options = parts[0][1][1] if one else [parts]
    if not any(map(_looks, options)):
        return _quoted(_ways(parts, loose))
    return " | ".join(_with_looks(list(option), loose) for option in options)


def _with_looks(parts: list[Part], loose: bool) -> str:
    """An option that may begin with what must follow the beginning of the text."""
    looks: list[Part] = []
    start = (op.AT, op.AT_BEGINNING_STRING)
    if parts and parts[0] == start:
        while len(parts) > 1 and parts[1][0] in _LOOKS and parts[1][1][0] > 0:
            looks.append(parts.pop(1))
    texts = [_quoted(_ways(parts, loose))]
    for kind, (_, inner) in looks:
        sign = "~" if kind is op.ASSERT_NOT else ""
        try:
            texts.append(f"{sign}{_quoted(_ways([start, *inner]))}")
        except UnsupportedError:
            if not loose:
                raise
    return " & ".join(texts)


def _looks(parts: Iterable[Part]) -> bool:
    return any(kind in _LOOKS or any(map(_looks, _inner(kind, of))) for kind, of in parts)


def _inner(kind: Any, of: Any) -> Sequence[Sequence[Part]]:
    """The patterns within a part."""
    if kind is op.BRANCH:
        options: Sequence[Sequence[Part]] = of[1]
        return options
    return [of[-1]] if kind in (op.SUBPATTERN, op.MAX_REPEAT) else []


def _quoted(ways: Sequence[_Way]) -> str:
    """The JSON strings in which one of these ways is found."""
    around = f"{ANY_CHAR}*"
    texts = [f"{'' if w.starts else around}{w.text}{'' if w.ends else around}" for w in ways]
    return f"/\\x{{22}}{_one_of(texts)}\\x{{22}}/"


def _one_of(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"(?:{'|'.join(texts)})" if texts else NOTHING


def _ways(parts: Iterable[Part], loose: bool = False) -> list[_Way]:
    """The ways to match one part after the other."""
    ways = [_Way("", empty=True)]
    for kind, of in parts:
        each = _ways_of(kind, of, loose)
        ways = _joined([w for a, b in product(ways, each) if (w := _then(a, b)) is not None])
    return ways


def _ways_of(kind: Any, of: Any, loose: bool) -> list[_Way]:
    if kind is op.LITERAL:
        return [_Way(char_text(((of, of),)), empty=False)]
    if kind is op.IN:
        ranges = union((each, each) if k is op.LITERAL else each for k, each in of)
        return [_Way(char_text(ranges), empty=False)]
    if kind is op.AT and of in (op.AT_BEGINNING_STRING, op.AT_END_STRING):
        is_end = of is op.AT_END_STRING
        return [_Way("", empty=True, starts=not is_end, ends=is_end)]
    if kind is op.SUBPATTERN:
        return _ways(of[-1], loose)
    if kind is op.BRANCH:
        return _joined([way for part in of[1] for way in _ways(part, loose)])
    if kind is op.MAX_REPEAT:
        return _repeated(of[0], of[1], of[2], loose)
    if kind is op.FAILURE or (kind is op.ASSERT_NOT and not of[1]):
        return []
    if not loose:
        raise UnsupportedError("a look around, a word boundary or a back reference")
    return [_Way(f"{ANY_CHAR}*" if kind is op.GROUPREF else "", empty=True)]


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
    return [
        _Way(
            _one_of(list(dict.fromkeys(w.text for w in alike))), any(w.empty for w in alike), *ends
        )
        for ends, alike in kinds.items()
    ]


def _counted(parts: Iterable[Part]) -> int:
    """How often a part of a repetition may come again before it is its next turn."""
    found = 1
    for kind, of in parts:
        inner = max(map(_counted, _inner(kind, of)), default=1)
        varies = kind is op.MAX_REPEAT and of[1] is not op.MAXREPEAT and of[0] != of[1]
        found = max(found, inner * (of[1] or 1) if varies else inner)
    return found


def _repeated(least: int, most: int | None, parts: Sequence[Part], loose: bool) -> list[_Way]:
    most = None if most is op.MAXREPEAT else most
    ways = _ways(parts, loose)
    nothing = [_Way("", empty=True)] if least == 0 else []
    if any(way.starts or way.ends for way in ways):
        if any(not (way.starts or way.ends) for way in ways) and most != 1:
            if loose:
                return [_Way(f"{ANY_CHAR}*", empty=True)]
            raise UnsupportedError("an anchor in a repetition")
        some = ways if most != 0 else []  # more than one of them would have to be empty
        return _joined([*some, *nothing])
    if not ways:
        return nothing
    if most is not None and most != least and most * _counted(parts) > _COSTLY:
        if not loose:
            raise UnsupportedError("long repetitions within a repetition")
        most = None
    counts = f"{{{least},{'' if most is None else most}}}"
    counts = {"{0,}": "*", "{1,}": "+", "{0,1}": "?"}.get(counts, counts)
    return [_Way(f"(?:{ways[0].text}){counts}", ways[0].empty or least == 0)]
