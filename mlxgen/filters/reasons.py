"""Names of filters and the grammar engine's reasons, as messages show them."""

from __future__ import annotations

import re

_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_PICTURE = re.compile(r"\n +\d+ \|.*\Z", re.DOTALL)  # lines of the grammar
_OUR_NAME = re.compile(r"\n *while processing \S*/closed-\d+$", re.MULTILINE)  # of a definition
_EXPRESSION = re.compile(r"regex parse error:\n(?P<shown>.*)\nerror: (?P<what>[^\n]*)", re.DOTALL)


def shortened(name: str) -> str:
    """The name of a filter, such as ``Regex('a*')``, in at most 80 characters."""
    return name if len(name) <= 80 else f"{name[:76]}...)"


def readable(reason: str) -> str:
    """One of the engine's reasons in one paragraph, for those who wrote the grammar.

    The engine reports a place as ``3(14)`` with a picture of the line, and an error in a
    regular expression with a picture of the expression. The place of the latter is left out,
    because the user has not written the grammar around a ``Regex``. Other reasons stay as they
    are.
    """
    reason = _OUR_NAME.sub("", _PICTURE.sub("", reason))
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
    if len(lines) == 2 and "^" in lines[1]:  # the expression, and marks under the wrong part
        first, last = lines[1].index("^"), lines[1].rindex("^")
        whole, wrong = lines[0][4:], lines[0][first : last + 1]
        here = f"{wrong!r} at character {first - 3}" if wrong else "at its end"
        return f"the regular expression {whole} is not valid: {match['what']} ({here})"
    return f"the regular expression is not valid: {match['what']}"
