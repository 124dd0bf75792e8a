"""The grammar engine's reasons, in words for those who wrote the grammar.

Owns ``readable``. Must never know what was compiled. Invariant: it is one paragraph, and what it
does not know stays as it is.

The engine reports places as ``3(14)`` with a picture of the line, and what its parser of regular
expressions says as a picture of the expression. There the place is left out: that of a ``Regex`` is
one in a grammar that the user has not written.
"""

from __future__ import annotations

import re

_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_PICTURE = re.compile(r"\n +\d+ \|.*\Z", re.DOTALL)  # of lines of the grammar
_EXPRESSION = re.compile(r"regex parse error:\n(?P<shown>.*)\nerror: (?P<what>[^\n]*)", re.DOTALL)


def readable(reason: str) -> str:
    """A reason without pictures."""
    reason = _PICTURE.sub("", reason)
    expression = _EXPRESSION.search(reason)
    if expression is not None:
        return _said(expression)
    place = _PLACE.match(reason)
    if place is not None:
        reason = f"line {place[1]}, column {place[2]}: {reason[place.end() :]}"
    return reason.strip()


def _said(match: re.Match[str]) -> str:
    """What is wrong with a regular expression, and where."""
    lines = match["shown"].split("\n")
    if len(lines) == 2 and "^" in lines[1]:  # the expression, and marks below the wrong part
        first, last = lines[1].index("^"), lines[1].rindex("^")
        whole, wrong = lines[0][4:], lines[0][first : last + 1]
        here = f"{wrong!r} at character {first - 3}" if wrong else "at its end"
        return f"the regular expression {whole} is not understood: {match['what']} ({here})"
    return f"the regular expression is not understood: {match['what']}"
