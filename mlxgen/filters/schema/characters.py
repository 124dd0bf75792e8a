r"""Sets of characters, as ranges; and how Python and JSON spell them.

In JSON text a character has one spelling: itself, or its short escape, or ``\u00..`` for other
control characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

from ...errors import GrammarError

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Characters, as ascending ranges that do not touch."""

LAST = 0x10FFFF
NOTHING = r"[^\s\S]"
_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The union of some ranges."""
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
    return (*found, (at, LAST)) if at <= LAST else tuple(found)


def _without(ranges: Ranges, out: Ranges) -> Ranges:
    return others(union((*others(ranges), *out)))


_DIGITS: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_BLANKS = (9, 10, 11, 12, 13, 32, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF)
_SPACE = union([*((code, code) for code in _BLANKS), (0x2000, 0x200A)])
NEWLINES: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
SETS = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_SURROGATES: Ranges = ((0xD800, 0xDFFF),)
ANY: Ranges = _without(((0, LAST),), _SURROGATES)


@lru_cache(64)
def of_property(name: str) -> Ranges:
    r"""The characters of ``\p{name}``."""
    import regex  # it knows all properties; asked once for each name

    try:
        found = regex.compile(rf"\p{{{name}}}")
    except regex.error:
        raise GrammarError(f"the pattern uses \\p{{{name}}}, which is not a property") from None
    return union((c, c) for c in range(LAST + 1) if found.match(chr(c)))


def either_case(ranges: Ranges) -> Ranges:
    both = list(ranges)
    for low, high in ranges:
        for code in range(low, min(high, 0x24F) + 1):
            for other in (chr(code).lower(), chr(code).upper()):
                both += [(ord(other), ord(other))] if len(other) == 1 else []
    return union(both)


def is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def class_of(ranges: Ranges) -> str:
    if is_one(ranges):
        return re.escape(chr(ranges[0][0]))
    codes = [f"\\U{a:08x}-\\U{b:08x}" for a, b in ranges]
    return f"[{''.join(codes)}]" if codes else "(?!)"


def _code(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\x{{{code:x}}}"


@lru_cache(1024)
def char_text(ranges: Ranges) -> str:
    """An expression for the JSON spellings of these characters."""
    plain = _without(ranges, ((0, 31), (34, 34), (92, 92), *_SURROGATES))
    special = [c for a, b in ranges for c in range(a, min(b, 92) + 1) if c < 32 or c in (34, 92)]
    short = "".join(_code(ord(_SHORT[c])) for c in special if c in _SHORT)
    long = [f"{c:02x}" for c in special if c not in _SHORT]
    parts = [f"[{''.join(_code(a) if a == b else f'{_code(a)}-{_code(b)}' for a, b in plain)}]"]
    parts = parts if plain else []
    parts += [f"\\\\[{short}]"] if short else []
    if long:
        either = "|".join(
            "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in x) for x in long
        )
        parts.append(f"\\\\u00(?:{either})")
    if not parts:
        return NOTHING
    return parts[0] if len(parts) == 1 and plain else f"(?:{'|'.join(parts)})"


ANY_CHAR = char_text(ANY)

_SCALAR = (
    r"\\u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
FREE_CHAR = rf"(?:{char_text(_without(ANY, ((0, 31),)))}|\\[bfnrt]|{_SCALAR})"
"""A character of a string whose length alone is restricted: any escape will do."""
