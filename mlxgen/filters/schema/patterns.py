r"""Patterns of JSON schemas (ECMA-262), as expressions for Python and over JSON text.

``searched`` rewrites a pattern for Python's ``regex`` and ``re``, with each class and escape
written out. It reads the syntax of ECMA's flag ``u``, and harmless parts of other dialects
(``\-``, ``\A``, ``\Z``, ``(?P<name>...)``, ``(?i)`` at the beginning). ``spelled`` has Python's own
parser read the result, and writes what it matches as a terminal of Lark over JSON strings, quotes
included.

Invariant: a JSON string with that spelling matches ``spelled`` if and only if the pattern is
found in its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import import_module
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
"""A node of Python's parser: its operation, and the argument of that."""

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
    r"|(?P<plain>[()|]|(?:[*+?]|\{\d+,?\d*\})\??)"
    r"|(?P<dot>\.)|(?P<char>.)",
    re.DOTALL,
)
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT)  # lazy ones match the same texts
_LOOKS = (op.ASSERT, op.ASSERT_NOT)
_START: Part = (op.AT, op.AT_BEGINNING_STRING)
_END: Part = (op.AT, op.AT_END_STRING)
_MOST_OPTIONS = 64
_SAID = {  # Python's messages, and ours
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
    """Rewrites a pattern in Python's spelling; ``_at`` is the place in it."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        flags = re.match(r"\(\?([ims]+)\)", pattern)
        if flags and "m" in flags[1]:
            raise UnsupportedError("the flag m")
        self._at = flags.end() if flags else 0
        self._any_case = bool(flags and "i" in flags[1])
        self._dot = ((0, LAST),) if flags and "s" in flags[1] else others(NEWLINES)

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
            return f"(?P={part['again']})"
        if kind == "odd":
            self._fail("a group of an unknown kind: (?")
        if kind == "name":
            return f"(?P<{part['name']}>"
        if kind in ("look", "plain"):
            return text
        if kind == "class":
            return class_of(self._class(negated=bool(part["class"])))
        if kind == "dot":
            return class_of(self._dot)
        self._at = part.start()
        return class_of(self._cased(self._chars("a backslash at its end")))

    def _chars(self, missing: str) -> Ranges:
        """The next character, or the set that the next escape stands for."""
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
                else:  # a set next to a dash
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


def spelled(pattern: str, *, loose: bool = False) -> str:
    """The JSON strings in which a pattern is found, as a terminal of Lark.

    GrammarError if it is not valid, UnsupportedError if no automaton matches it. ``loose``: allows
    some other strings as well, as if the pattern did not look around.
    """
    return _found(_read(pattern)[1], loose)


def _found(parts: Sequence[Part], loose: bool) -> str:
    return " | ".join(_spelled(option, loose) for option in _options(parts))


def _options(parts: Sequence[Part]) -> list[Sequence[Part]]:
    """The alternatives of a pattern, written out until no group has an anchor."""
    whole, waiting = [], [parts]
    while waiting:
        some = waiting.pop(0)
        at = next((i for i, (kind, of) in enumerate(some) if _is_anchored(kind, of)), None)
        if at is None:
            whole.append(some)
        else:
            waiting += [[*some[:at], *inner, *some[at + 1 :]] for inner in _inner(*some[at])]
        if len(waiting) > _MOST_OPTIONS:
            raise UnsupportedError("too many anchors in groups")
    return whole


def _is_anchored(kind: Any, of: Any) -> bool:
    """Whether a part is a group or a choice with an anchor in it."""
    within = [part for inner in _inner(kind, of) for part in inner]
    found = any(part in (_START, _END) or _is_anchored(*part) for part in within)
    return found and kind in (op.BRANCH, op.SUBPATTERN)


def _inner(kind: Any, of: Any) -> Sequence[Sequence[Part]]:
    """The patterns within a part."""
    if kind is op.BRANCH:
        options: Sequence[Sequence[Part]] = of[1]
        return options
    return [of[-1]] if kind is op.SUBPATTERN or kind in _REPEATS else []


def _spelled(given: Sequence[Part], loose: bool) -> str:
    """One alternative; it may begin with look-aheads from the beginning of the text."""
    parts = list(given)
    looks: list[Part] = []
    starts = ends = False
    while parts and (parts[0] == _START or (starts and parts[0][0] in _LOOKS)):
        if parts[0] == _START:
            starts = True
        elif parts[0][1][0] > 0:
            looks.append(parts[0])
        else:
            break
        del parts[0]
    while parts and parts[-1] == _END:
        ends = True
        del parts[-1]
    around = f"{ANY_CHAR}*"
    text = f"{'' if starts else around}{_text(parts, loose)}{'' if ends else around}"
    texts = [f"/\\x{{22}}{text}\\x{{22}}/"]
    for kind, (_, inner) in looks:
        sign = "~" if kind is op.ASSERT_NOT else ""
        try:
            texts.append(f"{sign}({_found([_START, *inner], loose=False)})")
        except UnsupportedError:
            if not loose:
                raise
    return " & ".join(texts)


def _text(parts: Iterable[Part], loose: bool) -> str:
    """A sequence of parts, as an expression of JSON text."""
    text = ""
    for kind, of in parts:
        if kind is op.LITERAL:
            text += char_text(((of, of),))
        elif kind is op.IN:
            text += char_text(union((each, each) if k is op.LITERAL else each for k, each in of))
        elif kind is op.SUBPATTERN:
            text += _text(of[-1], loose)
        elif kind is op.BRANCH:
            text += f"(?:{'|'.join(_text(option, loose) for option in of[1])})"
        elif kind in _REPEATS:
            text += _repeated(of[0], of[1], of[2], loose)
        elif kind is op.FAILURE:
            text += NOTHING
        elif not loose:
            raise UnsupportedError("an anchor in its middle, a look around or a back reference")
        elif kind is op.GROUPREF:
            text += f"{ANY_CHAR}*"
    return text


def _repeated(least: int, given: int, parts: Sequence[Part], loose: bool) -> str:
    most = None if given is op.MAXREPEAT else given
    longest = (most or least) * _counted(parts) if most != least else 0
    if max(least, most or 0) > _MAX_REPEAT or (most is not None and longest > _COSTLY):
        if not loose:
            raise UnsupportedError("long repetitions, or some within a repetition")
        least, most = min(least, _MAX_REPEAT), None
    counts = f"{{{least},{'' if most is None else most}}}"
    counts = {"{0,}": "*", "{1,}": "+", "{0,1}": "?"}.get(counts, counts)
    return f"(?:{_text(parts, loose)}){counts}"


def _counted(parts: Iterable[Part]) -> int:
    """The largest product of the limits of nested repetitions whose count may vary."""
    found = 1
    for kind, of in parts:
        inner = max(map(_counted, _inner(kind, of)), default=1)
        varies = kind in _REPEATS and of[1] is not op.MAXREPEAT and of[0] != of[1]
        found = max(found, inner * (of[1] or 1) if varies else inner)
    return found
