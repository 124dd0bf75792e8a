"""Values as models write them: JSON, Python literals, and Gemma's notation with its own quotes.

A ``Source`` is text that grows. Its readers are generators that yield to wait for more text, so
that one reader serves a stream and a whole answer. Raw line breaks in strings, backslashes that
escape nothing, quotes inside quotes, Python's words and leading zeros are read as what they mean;
anything else is a ``BrokenError``. Invariant: a value does not depend on how its text was split,
and JSON can represent it.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

import regex

from ...text import sequence_overlap
from ..template.values import mapped

T = TypeVar("T")
Waiting: TypeAlias = Generator[None, None, T]
"""Yields to wait for more text, and returns what was read."""

LONGEST = 4096  # characters of a mark, a name or a word
_MOST = 100  # characters of marks in a row: a model that repeats one for ever writes no call
_DEEP = 48  # levels of lists and objects; Python's stack holds only a few hundred


@lru_cache(1024)
def compiled(
    pattern: str, keys: tuple[str, ...] = (), *, at_end: bool = False
) -> regex.Pattern[str]:
    r"""The compiled pattern, in which ``\L<keys>`` matches one of the keys, and ``{end}`` the end
    of the text if ``at_end``, and else nothing."""
    if not keys:  # an empty list would match an empty text
        pattern = pattern.replace(r"\L<keys>", "(?!)")
    pattern = pattern.replace("{end}", r"\Z" if at_end else "(?!)")
    return regex.compile(pattern, ignore_unused=True, keys=keys)


class BrokenError(ValueError):
    """The text cannot be read as a value, or as a call."""


class Source:
    """Text that grows until it is ``final``.

    ``kept`` is the end of the last member read from it, ``reached`` the farthest place looked at;
    reading beyond ``limit`` is an error.
    """

    def __init__(self, text: str = "", *, final: bool = False) -> None:
        self.text = text
        self.final = final
        self.kept = self.reached = 0
        self.limit = math.inf

    def reach(self, place: int) -> None:
        """Look at a place. ``BrokenError`` if it is beyond the limit."""
        if place > self.limit:
            raise BrokenError("the call is too long")
        if place > self.reached:
            self.reached = place

    def at(self, place: int) -> Waiting[str]:
        """The character at a place; "" after the end."""
        self.reach(place)
        while place >= len(self.text):
            if self.final:
                return ""
            yield
        return self.text[place]

    def match(
        self, pattern: str, place: int, keys: Sequence[str] = (), *, longest: bool = False
    ) -> Waiting[regex.Match[str] | None]:
        """The match at a place, as soon as more text cannot undo it; at most ``LONGEST`` long.

        ``longest``: more text might make the match longer, so wait for what follows it.
        """
        self.reach(place)
        end = place + LONGEST
        while True:
            is_all = self.final or len(self.text) >= end
            known = compiled(pattern, tuple(keys), at_end=self.final and len(self.text) <= end)
            match = known.match(self.text, place, end, partial=not is_all)
            if match is None or is_all:
                return match
            if not match.partial and not (longest and match.end() == len(self.text)):
                return match
            yield

    def find(self, pattern: str, place: int, keys: Sequence[str] = ()) -> regex.Match[str] | None:
        """The first match after a place, or a partial one before it, at a ``<``, that more text may
        complete."""
        known = compiled(pattern, tuple(keys))
        match = known.search(self.text, place, partial=not self.final)
        if match is None or match.partial or self.final:
            return match
        begin = self.text.find("<", place, match.start())
        while begin >= 0:
            early = known.match(self.text, begin, partial=True)
            if early is not None:
                return early
            begin = self.text.find("<", begin + 1, match.start())
        return match

    def passed(self, place: int, pieces: Sequence[str], *, often: bool = False) -> Waiting[int]:
        """Skip any ``pieces`` at a place, with white space before each; return where the last one
        ends. Unless ``often``, nothing is skipped after ``pieces[-1]``."""
        end, longest = place, max(map(len, pieces), default=0)
        while pieces and end - place < _MOST:
            start = yield from self.space(end)
            rest = self.text[start : start + longest]
            piece = max((each for each in pieces if rest.startswith(each)), key=len, default=None)
            if not self.final and any(each != rest and each.startswith(rest) for each in pieces):
                yield
            elif piece is None:
                break
            else:
                end = start + len(piece)
                if piece == pieces[-1] and not often:
                    break
        return end

    def space(self, place: int) -> Waiting[int]:
        """Where the white space at a place ends."""
        while True:
            while place < len(self.text) and self.text[place].isspace():
                place += 1
            if place < len(self.text) or self.final:
                return place
            yield


class Fields(Protocol):
    """Takes the members of an object, one after the other.

    ``follow`` is the pattern that must match after a string's closing quote; otherwise the quote is
    part of the string. ``over`` is the pattern of what ends an object without its bracket.
    """

    follow: str
    over: str

    def begin(self, key: str) -> Callable[[str], None] | None:
        """A member begins; returns a function to take the pieces of its value, if a string."""

    def end(self, key: str, value: Any) -> None:
        """A member is complete."""


class _Plain(dict[str, Any]):
    """The members of an object inside a value."""

    follow = r"\s*(?:[,\]})]|{end})"
    over = "(?!)"

    def begin(self, key: str) -> None:
        return None

    def end(self, key: str, value: Any) -> None:
        self[key] = value


@dataclass(frozen=True, slots=True)
class Notation:
    """A way of writing values.

    - ``quotes``: the quotes of strings; ``raw``: another quote, inside which nothing is escaped.
    - ``python``: escapes are Python's.
    - ``words``: unquoted text that is no other value is a string.
    """

    quotes: tuple[str, ...] = ('"', "'")
    raw: str = ""
    python: bool = False
    words: bool = False

    def value(
        self,
        source: Source,
        place: int,
        follow: str,
        taker: Callable[[str], None] | Fields | None = None,
        depth: int = 0,
    ) -> Waiting[tuple[Any, int]]:
        """The value at a place, and where it ends. ``taker`` takes the pieces of a string, or the
        members of an object, whose value is then None. ``follow`` is as in ``Fields``."""
        place = yield from source.space(place)
        first = yield from source.at(place)
        if depth > _DEEP:
            raise BrokenError("the value is too deep")
        raw = False
        if self.python and (prefix := (yield from source.match(_PREFIX, place))):
            place, raw = prefix.end(), prefix[0] in "rR"
        if quote := (yield from self._quote(source, place)):
            grow = taker if callable(taker) else None
            place += len(quote)
            return (yield from self._string(source, place, quote, follow, grow, raw=raw))
        if taker is not None and not callable(taker) and first == "{":
            return None, (yield from self.members(source, place + 1, "}", taker, depth))
        if first == "{" and not (yield from source.match(_SET, place)):
            plain = _Plain()
            place = yield from self.members(source, place + 1, "}", plain, depth)
            return dict(plain), place
        if first and first in "[({":
            found, close, place = list[Any](), _CLOSES[first], place + 1
            while True:
                place = yield from source.space(place)
                if found and (yield from source.at(place)) == ",":
                    place = yield from source.space(place + 1)
                elif found and source.text[place : place + 1] != close:
                    raise BrokenError("a list does not go on")
                if (yield from source.at(place)) == close:
                    return found, place + 1
                each, place = yield from self.value(source, place, _Plain.follow, None, depth + 1)
                found.append(each)
        bare = _WORDS if self.words else _WORD
        match = yield from source.match(bare, place, longest=True)
        if match is None or not match[0]:
            raise BrokenError("there is no value")
        return _bare(match[0].rstrip(), strings=self.words), place + len(match[0].rstrip())

    def members(
        self, source: Source, place: int, close: str, fields: Fields, depth: int = 0
    ) -> Waiting[int]:
        """Read the members of an object after its opening bracket, up to the closing one; return
        where that ends."""
        while True:
            place = yield from source.space(place)
            if (yield from source.at(place)) == close:
                return place + 1
            if quote := (yield from self._quote(source, place)):
                string = self._string(source, place + len(quote), quote, _AFTER_KEY, None)
                key, place = yield from string
            elif match := (yield from source.match(_KEY, place)):
                key, place = match[0], match.end()
            else:
                raise BrokenError("there is no key")
            place = yield from source.space(place)
            if (yield from source.at(place)) not in ("=" if close == ")" else ":=", ":"):
                raise BrokenError("there is no value for a key")
            taker = fields.begin(key)
            follow = fields.follow
            value, place = yield from self.value(source, place + 1, follow, taker, depth + 1)
            fields.end(key, value)
            source.kept = place
            place = yield from source.space(place)
            after = yield from source.at(place)
            if after == ",":
                place += 1
            elif after != close:
                if not (yield from source.match(fields.over, place)):
                    raise BrokenError("an object does not go on")
                return place

    def _quote(self, source: Source, place: int) -> Waiting[str]:
        """The quote at a place, or ""."""
        if self.raw:
            while not source.final and len(source.text) < place + len(self.raw):
                if not self.raw.startswith(source.text[place:]):
                    break
                yield
            if source.text.startswith(self.raw, place):
                return self.raw
        first = yield from source.at(place)
        if first not in self.quotes:
            return ""
        if first * 3 in self.quotes:
            yield from source.at(place + 2)
            if source.text.startswith(first * 3, place):
                return first * 3
        return first

    def _string(
        self,
        source: Source,
        place: int,
        quote: str,
        follow: str,
        grow: Callable[[str], None] | None,
        *,
        raw: bool = False,
    ) -> Waiting[tuple[str, int]]:
        """The string after an opening quote, and the place after its closing quote."""
        parts: list[str] = []
        raw = raw or quote == self.raw

        def take(text: str) -> None:
            if text:
                parts.append(text)
                if grow is not None:
                    grow(text)

        while True:
            stop = source.text.find(quote, place)
            until = stop if stop >= 0 else len(source.text)
            escape = -1 if raw else source.text.find("\\", place, until)
            if escape >= 0:
                take(source.text[place:escape])
                match, place = (yield from source.match(_PAIR, escape)), escape + 1
                if match is None:
                    known = _PYTHON_ESCAPE if self.python else _JSON_ESCAPE
                    match = yield from source.match(known, escape)
                if match is not None:
                    place = match.end()
                take("\\" if match is None else _unescaped(match[0]))
            elif stop >= 0:
                source.reach(stop)
                take(source.text[place:stop])
                place = stop + len(quote)
                if (yield from source.match(follow, place)):
                    return "".join(parts), place
                take(quote)
            else:
                safe = until
                if len(quote) > 1:
                    safe -= sequence_overlap(source.text[place:], quote)
                take(source.text[place:safe])
                place = safe
                source.reach(place)
                if source.final:
                    source.kept = place
                    raise BrokenError("a string does not end")
                yield


_AFTER_KEY = r"\s*[:=,}]"
_KEY = r"[\w$.-]+(?=\s*[:=])"
_SET = r"""\{\s*(?:"[^"]*"|'[^']*'|[\w.+-]+)\s*[,}]"""  # a Python set
_CLOSES = {"[": "]", "(": ")", "{": "}"}
_PREFIX = r"[rRuU](?=[\"'])"  # of a Python string
_WORD = r"[-+.\w]+"
_WORDS = r"""[^\s,\]\)}{\[("'][^,\]\)}{\[("'\n]*"""
_INTEGER = regex.compile(r"[-+]?[0-9]+(?:_[0-9]+)*")
_NUMBER = regex.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_WORDS_FOR: Mapping[str, Any] = {"true": True, "false": False, "null": None, "none": None}
_HEX = "[0-9a-fA-F]"
_PAIR = rf"\\u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"
_JSON_ESCAPE = rf"\\u{_HEX}{{4}}|\\[\"'\\/bfnrt]"
_PYTHON_ESCAPE = (
    rf"\\(?:u{_HEX}{{4}}|[0-3]?[0-7]{{1,2}}|x{_HEX}{{2}}|U{_HEX}{{8}}"
    rf"|N\{{[^}}]*\}}|[\\'\"abfnrtv\n])"
)


def _unescaped(escape: str) -> str:
    """The character that an escape stands for; half a surrogate pair becomes U+FFFD."""
    if escape[1] in "/'":
        return escape[1]
    try:
        return _encodable(codecs.decode(escape, "unicode_escape"))
    except UnicodeDecodeError:  # no character has this name, or this number
        return escape if escape[1] == "N" else "\ufffd"


def _bare(text: str, *, strings: bool) -> Any:
    """The value of unquoted text. Leading zeros, and a point with no digits after it, are slips."""
    known = text.lower()
    if known in _WORDS_FOR:
        return _WORDS_FOR[known]
    try:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _NUMBER.fullmatch(text):
            return _finite(text)
    except ValueError:  # more digits than Python converts
        raise BrokenError(f"a number of {len(text)} digits is too large") from None
    if strings:
        return text
    raise BrokenError(f"{text[:20]!r} is not a value")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BrokenError(f"{text[:20]} is too large a number")
    return number


# ---- whole texts ---------------------------------------------------------------------------------

JSON = Notation(('"""', '"', "'"))
PYTHON = Notation(('"""', "'''", '"', "'"), python=True, words=True)
_LITERAL = Notation(('"""', "'''", '"', "'"), python=True)


def plain_json(text: str) -> Any:
    """The value of JSON text. ``ValueError`` if it is not JSON."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise BrokenError("the value is too deep") from None


def literal(text: str) -> Any:
    """The value that a text spells in JSON, nearly JSON, or Python. ``ValueError`` if in none."""
    try:
        return plain_json(text)
    except ValueError:
        notation = JSON if text.lstrip()[:1] in '{["' else _LITERAL
    source = Source(text, final=True)
    reading = notation.value(source, 0, _Plain.follow)
    try:
        while True:
            next(reading)
    except StopIteration as done:
        value, end = done.value
    if text[end:].strip():
        raise BrokenError("something follows the value")
    return value


def returned(arguments: str) -> dict[str, Any] | str:
    """The arguments of a call in a conversation that a client sends back, as an object for a chat
    template; as their text if they are not an object. Empty text means no arguments.

    A backslash that escapes nothing stands for itself, as in ``"\\d+"``, and so does a line break
    in a string; half a surrogate pair becomes U+FFFD.
    """
    if not arguments.strip():
        return {}
    try:
        value = literal(arguments)
    except ValueError:
        return arguments
    return mapped(value, _encodable) if isinstance(value, dict) else arguments


def _encodable(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def dumped(value: Any) -> str:
    """A value as JSON text."""
    return _encodable(json.dumps(value, ensure_ascii=False, allow_nan=False))


def escaped(text: str) -> str:
    """Text, escaped for the inside of a JSON string."""
    return dumped(text)[1:-1]
