"""One regular expression, searched for in a growing text.

``Expression`` compiles an expression of the standard library with the ``regex`` library, whose
partial matching can answer "not yet", and knows how far it looks around a match.

Invariant: a hit is the same whether the text arrives one character at a time or all at once. A
match that ends at ``e`` counts once ``reach`` more characters have arrived, because later text
cannot change it.

A search that would not end, as with ambiguous repeats (``(a|aa)+b``), is cut off after ``SECONDS``
of CPU time, with an OptionError that names the expression.

Both libraries read the common syntax alike. They differ on ``{e<=1}``, which is plain text in
``re`` and a fuzzy match in ``regex``, and on ``[[:alpha:]]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import regex

from ..errors import OptionError

# Only the parsed form says how far an expression looks. The module is not public; it has
# had this form since 3.11.
_re_parser: Any = import_module("re._parser")

SECONDS = 1.0  # a search takes microseconds or never ends
_SHORT = 12  # characters: shorter searches need no time limit, whose clock takes a microsecond
_UNLIMITED = 1 << 16
_FLAGS = {
    re.ASCII: regex.ASCII,
    re.DOTALL: regex.DOTALL,
    re.IGNORECASE: regex.IGNORECASE,
    re.MULTILINE: regex.MULTILINE,
    re.VERBOSE: regex.VERBOSE,
}


class Hit(NamedTuple):
    """A match in a window, and how long the window was when the match became certain."""

    start: int
    end: int
    certain: int


class Expression:
    """A searchable expression. OptionError if it cannot be banned.

    source  the expression as written
    reach   how many characters it looks at after a match, at most
    behind  how many characters before a match the window must hold, if the text has them
    """

    __slots__ = ("_compiled", "behind", "reach", "source")

    def __init__(self, pattern: re.Pattern[str]) -> None:
        if not isinstance(pattern.pattern, str):
            raise OptionError("banned", f"{pattern.pattern!r} matches bytes; compile a string")
        self.source = pattern.pattern
        try:
            self._read(pattern)
        except RecursionError as error:
            raise OptionError("banned", f"{self.source[:80]!r} is nested too deeply") from error

    def _read(self, pattern: re.Pattern[str]) -> None:
        parsed = _re_parser.parse(self.source, pattern.flags & ~re.DEBUG)
        if parsed.getwidth()[0] == 0:
            raise OptionError(
                "banned", f"{self.source!r} matches the empty string, which is everywhere"
            )
        if _denies_what_follows(parsed):
            raise OptionError(
                "banned", f"{self.source!r} looks beyond its match inside (?!...) or (?<!...)"
            )
        flags = sum(theirs for ours, theirs in _FLAGS.items() if pattern.flags & ours)
        try:
            spelled = _without_boundaries(self.source, verbose=bool(flags & regex.VERBOSE))
            self._compiled = regex.compile(spelled, flags | regex.VERSION0)
        except regex.error as error:
            raise OptionError("banned", f"cannot use {self.source!r}: {error}") from error
        self.reach, behind = _around(parsed)
        # One more, so that the start of the window is not taken for the start of the text.
        self.behind = behind + 1
        if self.reach >= _UNLIMITED:
            raise OptionError("banned", f"{self.source!r} looks ahead without limit")

    def look(self, window: str, start: int, known: int) -> tuple[Hit | None, int]:
        """Searches a window from ``start`` on; its first ``known`` characters were searched before.

        Returns the first match that is certain, and where the next one may start.
        """
        for end in range(known + 1, len(window) + 1):
            match = self._search(window, start, end, partial=True)
            if match is None:
                start = end
            elif match.partial:
                start = match.start()
            elif match.end() + self.reach <= end:
                return Hit(match.start(), match.end(), end), start
        return None, start

    def look_at_end(self, window: str, start: int) -> Hit | None:
        """The first match from ``start`` on, in a window that no text will follow."""
        match = self._search(window, start, len(window), partial=False)
        return None if match is None else Hit(match.start(), match.end(), len(window))

    def _search(self, window: str, start: int, end: int, *, partial: bool) -> Any:
        if end - start <= _SHORT:
            return self._compiled.search(window, start, end, partial=partial)
        try:
            return self._compiled.search(window, start, end, partial=partial, timeout=SECONDS)
        except TimeoutError as error:
            raise OptionError(
                "banned",
                f"{self.source!r} takes more than {SECONDS:g} s for {end - start} characters; "
                "remove repeats that can match the same text in several ways",
            ) from error


def _around(parsed: Any) -> tuple[int, int]:
    """How many characters after and before its match an expression looks at, at most."""
    after = before = 0
    for operation, value in parsed:
        kind, ahead, behind = str(operation), 0, 0
        if kind == "AT":
            # A final $ also matches before a line end that ends the text.
            ahead = 2 if str(value) == "AT_END" else 1
            behind = 1
        elif kind in ("ASSERT", "ASSERT_NOT"):
            direction, inner = value
            width = min(inner.getwidth()[1], _UNLIMITED)
            ahead, behind = _around(inner)
            if direction > 0:
                ahead += width
            else:
                behind += width
        else:
            for inner in _inner(value):
                one, other = _around(inner)
                ahead, behind = max(ahead, one), max(behind, other)
        after, before = max(after, ahead), max(before, behind)
    return after, before


def _denies_what_follows(parsed: Any) -> bool:
    """Whether a negative assertion of an expression looks at what follows the match.

    At the end of the text so far, a negated ``$`` fails but may hold later. Anything else that
    looks ahead is left open there by partial matching, or holds and may fail later.
    """
    denied = [value[1] for kind, value in _operations(parsed) if kind == "ASSERT_NOT"]
    for kind, value in (each for inner in denied for each in _operations(inner)):
        if kind == "AT" and not str(value).startswith("AT_BEGINNING"):
            return True
        if kind in ("ASSERT", "ASSERT_NOT") and value[0] > 0:
            return True
    return False


_BOUNDARIES = {
    r"\b": r"(?:(?<=\w)(?!\w)|(?<!\w)(?=\w))",
    r"\B": r"(?:(?<=\w)(?=\w)|(?<!\w)(?!\w))",
}


def _without_boundaries(source: str, *, verbose: bool) -> str:
    r"""The same expression with ``\b`` and ``\B`` spelled out.

    For ``\b``, partial matching takes the end of the text so far for the end of a word; the answer
    to ``(?=...)`` it leaves open.
    """
    comment = r"|\#[^\n]*" if verbose else ""
    parts = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?\#[^)]*\)" + comment, re.DOTALL)
    return parts.sub(lambda part: _BOUNDARIES.get(part[0], part[0]), source)


def _operations(parsed: Any) -> Iterator[tuple[str, Any]]:
    """All operations of an expression, nested ones included."""
    for kind, value in parsed:
        yield str(kind), value
        for inner in _inner(value):
            yield from _operations(inner)


def _inner(value: Any) -> list[Any]:
    """The expressions within the argument of an operation."""
    if isinstance(value, _re_parser.SubPattern):
        return [value]
    if isinstance(value, list | tuple):
        return [found for item in value for found in _inner(item)]
    return []
