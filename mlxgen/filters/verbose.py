"""Regular expressions without verbose mode.

``re.VERBOSE``, ``(?x)`` and ``(?x:...)`` mean what they mean in Python: blanks and comments are
ignored, except in classes and after a backslash. The grammar engine's own verbose mode drops
blanks in classes and takes line breaks for text.
"""

from __future__ import annotations

import re

_BLANKS = " \t\n\r\v\f"
_PART = re.compile(
    r"""
    (?P<escape> \\.? )
    | (?P<class> \[\^?\]?(?:\\.|[^\]\\])*(?:\]|\Z) )
    | (?P<remark> \(\?\#[^)]*(?:\)|\Z) )
    | (?P<flags> \(\?(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]+))?[:)] )
    | (?P<repeat> \{(?:\d+|(?P<least>\d*),(?P<most>\d*))\} )
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def expanded(pattern: str, *, verbose: bool = False) -> str:
    """The same expression, not verbose; ``verbose``: it starts in verbose mode."""
    if not verbose and "(?" not in pattern:
        return pattern
    parts = []
    modes = [verbose]  # for each open group
    at = 0
    while found := _PART.match(pattern, at):
        at = found.end()
        part = found[0]
        if found["flags"]:
            flags, mode = _flags(found, modes[-1])
            if part.endswith(":"):
                modes.append(mode)
                part = f"(?{flags}:"
            else:
                modes[-1] = mode
                part = f"(?{flags})" if flags else ""
        elif found["remark"]:
            part = "" if part.endswith(")") else part
        elif part == "(":
            modes.append(modes[-1])
        elif part == ")":
            del modes[max(1, len(modes) - 1) :]
        elif modes[-1] and part == "#":
            part = ""
            at = pattern.find("\n", at) + 1 or len(pattern)
        elif modes[-1] and not found["class"]:
            part = _plain(found)
        parts.append(part)
    return "".join(parts)


def _flags(found: re.Match[str], verbose: bool) -> tuple[str, bool]:
    """The flags that are left, and the mode that they set."""
    on, off = found["on"], found["off"] or ""
    mode = (verbose or "x" in on) and "x" not in off
    on, off = on.replace("x", ""), off.replace("x", "")
    return on + (off and f"-{off}"), mode


def _plain(found: re.Match[str]) -> str:
    """A sign, an escape or a repetition of the verbose mode, as it is written without it."""
    part = found[0]
    if found["escape"]:
        blank = part[1:] and part[1] in _BLANKS
        return f"\\x{ord(part[1]):02x}" if blank else part
    if found["repeat"]:
        return part if found["most"] is None else f"{{{found['least'] or 0},{found['most']}}}"
    if part in "{}":  # any brace that is not a repetition is text, even one with blanks in it
        return "\\" + part
    return "" if part in _BLANKS else part
