"""Arguments that are literals: ``key: value`` or ``key=value``, with bare keys.

Such literals (Python's, and Gemma's with its own quotes) become JSON while they are written, at any
depth. Invariant: the one of ``arguments``; what stands without quotes is what mlx-lm's parser takes
it for.
"""

from __future__ import annotations

import ast
from typing import Literal

import regex

from ...text import sequence_overlap
from .arguments import Growth, Parse, Tool, dumped, escaped

_QUOTES = ('"""', "'''", '"', "'")  # in which a backslash escapes
_ESCAPE = regex.compile(
    r"\\(?:[0-7]{3}|[0-7]{1,2}(?=[^0-7])|x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|N\{[^}]*\}"
    r"|[\\'\"abfnrtv\n])"
)


class LiteralArguments:
    """Literals, after a bracket that was already read, up to the one that closes them, or to
    ``end`` outside their strings.

    ``quote`` is an additional quote, in which nothing is escaped; ``call`` is a call with one
    argument for the parser, with ``VALUE`` in its place.
    """

    def __init__(self, tool: Tool, parse: Parse, end: str, *, call: str, quote: str = "") -> None:
        self._call = call
        self._parse = parse
        self._tokens = {at_key: _tokens(quote, end, at_key) for at_key in (True, False)}
        self._place: Literal["key", "value", "after"] = "key"  # what may come next; after: a value
        self._open = ["}"]  # what closes each open object and list, in JSON
        self._is_first = True  # whether the innermost of them is empty so far
        self._quote = ""  # of the string that is read
        self._unclosed = False  # after a string, which an adjacent one would continue
        self._more = ["{"]

    def take(self, text: str) -> Growth:
        at, before, ended = 0, -1, False
        while at > before and not ended:
            before = at
            if self._quote:
                at = self._string(text, at)
            else:
                at, ended = self._token(text, at)
        more, self._more = "".join(self._more), []
        return Growth(at, more, ended)

    def _token(self, text: str, at: int) -> tuple[int, bool]:
        """Where the token at ``at`` ends, if it does, and whether it was the last."""
        token = self._tokens[self._place == "key"].match(text, at, partial=True)
        if token is None or token.partial:
            return at, False
        kind, written = token.lastgroup, token[0]
        if kind == "space":
            return token.end(), False
        if self._unclosed and kind != "quote":
            self._more.append('"')
        if kind == "end":
            self._more.extend(reversed(self._open))
            return at, True
        if kind == "quote":
            self._quote = written
            if not self._unclosed:
                self._begin('"')
        elif kind == "open":
            self._begin("{" if written == "{" else "[")
            self._open.append("}" if written == "{" else "]")
            self._is_first, self._place = True, "key" if written == "{" else "value"
        elif kind == "close":
            self._more.append(self._open.pop())
            self._is_first, self._place = False, "after"
        elif kind == "comma":
            self._place = "key" if self._open[-1] == "}" else "value"
        elif kind == "sign":
            self._more.append(": ")
            self._place = "value"
        elif kind == "key":
            self._begin(dumped(written.strip()))
        elif self._place == "value":
            self._begin(self._bare(written.strip()))
            self._place = "after"
        self._unclosed = False
        return token.end(), not self._open

    def _string(self, text: str, at: int) -> int:
        """Where the certain part of the string at ``at`` ends."""
        stop = text.find(self._quote, at)
        safe = stop if stop >= 0 else len(text) - sequence_overlap(text[at:], self._quote)
        escape = text.find("\\", at, safe) if self._quote in _QUOTES else -1
        if escape >= 0:
            self._more.append(escaped(text[at:escape]))
            match = _ESCAPE.match(text, escape, partial=True)
            if match is not None and match.partial:
                return escape
            self._more.append(escaped(_character(match[0] if match is not None else "\\")))
            return match.end() if match is not None else escape + 1
        self._more.append(escaped(text[at:safe]))
        if stop < 0:
            return safe
        safe += len(self._quote)
        self._quote, self._unclosed = "", True
        self._place = "after" if self._place == "value" else self._place
        return safe

    def _begin(self, written: str) -> None:
        """Writes the beginning of a key or a value, after a comma if it needs one."""
        is_member = self._place == "key" or self._open[-1] == "]"
        self._more.append((", " if is_member and not self._is_first else "") + written)
        self._is_first = False

    def _bare(self, written: str) -> str:
        """A value without quotes, as JSON text."""
        try:
            read = self._parse(self._call.replace("VALUE", written), None)
            (value,) = (read[0] if isinstance(read, list) else read)["arguments"].values()
            return dumped(value)
        except Exception:  # the parsers may raise anything for what a model makes up
            return dumped(written)


def _character(escape: str) -> str:
    try:
        return str(ast.literal_eval(f'"{escape}"'))
    except (SyntaxError, ValueError):
        return escape


def _tokens(quote: str, end: str, at_key: bool) -> regex.Pattern[str]:
    """The tokens outside of strings; ``end`` is the mark that ends the call."""
    end = regex.escape(end) if end else "(?!)"
    quotes = [*([regex.escape(quote)] if quote else ()), '"""', "'''", '"(?=[^"]|"[^"])']
    quotes.append("'(?=[^']|'[^'])")
    others = r",\])}" + (r":=\[({" if at_key else "")
    bare = f"(?:(?!{end})[^{others}])+"
    kinds = {
        "space": r"\s+",
        "end": end,
        "quote": "|".join(quotes),
        "open": r"[\[{(]",
        "close": r"[\]})]",
        "comma": ",",
        "sign": "[:=]" if at_key else "(?!)",
        "key": f"{bare}(?=[:=])" if at_key else "(?!)",
        "bare": f"{bare}(?=[{others}]|{end})",
    }
    return regex.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in kinds.items()))
