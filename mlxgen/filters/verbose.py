"""Regular expressions without their verbose parts.

Owns the meaning of ``re.VERBOSE``, ``(?x)`` and ``(?x:...)``, which is Python's: blanks and
comments mean nothing, but in classes and behind a backslash they stand for themselves. The
grammar engine has a verbose mode of its own, which drops blanks in classes and takes line breaks
for text. Must never know what else an expression means.
"""

from __future__ import annotations

import re

_BLANKS = " \t\n\r\v\f"
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_REPEAT = re.compile(r"\{(?:(\d+)|(\d*),(\d*))\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def expanded(pattern: str, *, verbose: bool = False) -> str:
    """The same expression for a reader without a verbose mode; ``verbose``: it begins in it."""
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
        """What the next sign, and what belongs to it, is written as."""
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
        """A number of repetitions; any other brace is text, whatever blanks are in it."""
        found = _REPEAT.match(self._pattern, at)
        if found is None:
            return "\\" + self._pattern[at]
        self._at = found.end()
        exactly, least, most = found.groups()
        return found[0] if exactly else f"{{{least or 0},{most}}}"
