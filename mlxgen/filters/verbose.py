"""Regular expressions without verbose mode.

``re.VERBOSE``, ``(?x)`` and ``(?x:...)`` mean what they mean in Python: blanks and comments are
ignored, except in classes and after a backslash. The grammar engine's own verbose mode drops
blanks in classes and takes line breaks for text.
"""

from __future__ import annotations

import re

_BLANKS = " \t\n\r\v\f"
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_REPEAT = re.compile(r"\{(?:(\d+)|(\d*),(\d*))\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def expanded(pattern: str, *, verbose: bool = False) -> str:
    """The same expression, not verbose; ``verbose``: it starts in verbose mode."""
    if not verbose and "(?" not in pattern:
        return pattern
    return "".join(_Reader(pattern, verbose).parts())


class _Reader:
    def __init__(self, pattern: str, verbose: bool) -> None:
        self._pattern = pattern
        self._at = 0
        self._verbose = [verbose]  # for each open group

    def parts(self) -> list[str]:
        parts = []
        while self._at < len(self._pattern):
            start = self._at
            parts.append(self._part(self._pattern[start]))
            assert self._at > start
        return parts

    def _part(self, sign: str) -> str:
        """The next sign and what belongs to it, rewritten."""
        pattern, at = self._pattern, self._at
        verbose = self._verbose[-1]
        if sign == "\\":
            self._at += 2
            escaped = pattern[at + 1 : at + 2]
            return f"\\x{ord(escaped):02x}" if verbose and escaped in _BLANKS else "\\" + escaped
        if sign == "[":
            found = _CLASS.match(pattern, at)
            return self._taken(found) if found else self._rest()
        if sign == "(":
            return self._group()
        self._at += 1
        if sign == ")":
            if len(self._verbose) > 1:
                self._verbose.pop()
            return sign
        if not verbose or sign not in _BLANKS + "#{}":
            return sign
        if sign == "#":
            end = pattern.find("\n", at)
            self._at = len(pattern) if end < 0 else end + 1
        return self._brace(at) if sign in "{}" else ""

    def _taken(self, found: re.Match[str]) -> str:
        self._at = found.end()
        return found[0]

    def _rest(self) -> str:
        rest, self._at = self._pattern[self._at :], len(self._pattern)
        return rest

    def _group(self) -> str:
        if self._pattern.startswith("(?#", self._at):
            end = self._pattern.find(")", self._at)
            if end < 0:
                return self._rest()
            self._at = end + 1
            return ""
        found = _FLAGS.match(self._pattern, self._at)
        if found is None:
            self._at += 1
            self._verbose.append(self._verbose[-1])
            return "("
        on, off, end_sign = found[1], found[2] or "", found[3]
        verbose = (self._verbose[-1] or "x" in on) and "x" not in off
        self._at = found.end()
        on, off = on.replace("x", ""), off.replace("x", "")
        flags = on + ("-" + off if off else "")
        if end_sign == ":":
            self._verbose.append(verbose)
            return f"(?{flags}:"
        self._verbose[-1] = verbose
        return f"(?{flags})" if flags else ""

    def _brace(self, at: int) -> str:
        """A repetition; any other brace, even one with blanks in it, is text."""
        found = _REPEAT.match(self._pattern, at)
        if found is None:
            return "\\" + self._pattern[at]
        self._at = found.end()
        exactly, least, most = found.groups()
        return found[0] if exactly else f"{{{least or 0},{most}}}"
