r"""llama.cpp's GBNF, rewritten in llguidance's dialect of Lark.

    root ::= "yes" | "no" [.!]{0,3}     strings, classes, repetition
    name ::= [^"\\\n]+ | (a | b)?       negated classes, groups, other rules
    mark ::= <think> | <[1000]>         tokens, by name or number; ! before one: any other
    # to the end of the line            comments

Invariant: llama.cpp takes every grammar that is taken here, and both grammars derive the same
texts.

llguidance cuts text into the longest lexemes that fit, and GBNF has no lexemes. So a grammar
without recursion becomes one single lexeme, and any other is written with a lexeme for each
character: neither leaves anything to cut. (llguidance has its own ``gbnf_to_lark``, which makes
lexemes of rules: ``("a" | "ab") "bc"`` then refuses ``abc``. It supports no tokens and none of
llama.cpp's newer syntax.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import NoReturn

from ..errors import GrammarError
from .grammar import quoted

MAX_EXPANDED = 4000  # parts of a grammar that is written as one lexeme, at most
_NO_LEXEME = MAX_EXPANDED + 1
MAX_DEPTH = 100
MAX_REPEAT = 2000

_RULE = re.compile(r"^[ \t]*[A-Za-z0-9_-]+[ \t]*::=", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_TOKEN = re.compile(r"(!?)<(\[\d+\]|[^<>\s\[\]]+)>")
_COUNTS = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_SPACE = re.compile(r"(?:[ \t\r]|#[^\n]*)*")
_LINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_WIDTHS = {"x": 2, "u": 4, "U": 8}


def is_gbnf(grammar: str) -> bool:
    """Whether a grammar is written in GBNF rather than in Lark."""
    return _RULE.search(grammar) is not None


def lark_of(grammar: str) -> str:
    """The same grammar in Lark. GrammarError, with the line, if it is not GBNF."""
    reader = _Reader(grammar)
    rules = reader.rules()
    if "root" not in rules:
        raise GrammarError("GBNF: there is no rule named root; define it")
    for name, rule in rules.items():
        for other in rule.uses:
            if other not in rules:
                raise GrammarError(f"GBNF: rule {name} uses {other}, which is not defined")
    used = _used(rules)
    if _size(used) < _NO_LEXEME:
        lines = [f"R{reader.numbers[name]}: {rule.lexeme}" for name, rule in used.items()]
        return "\n".join(["start: R0", *lines, ""])
    lines = [f"r{reader.numbers[name]}: {rule.rule}" for name, rule in used.items()]
    return "\n".join(["start: r0", *lines, ""])


def _used(rules: Mapping[str, _Part]) -> dict[str, _Part]:
    """The rules that the root uses, directly or not; the root first."""
    used: dict[str, _Part] = {}
    waiting = ["root"]
    while waiting:
        name = waiting.pop()
        if name not in used:
            used[name] = rules[name]
            waiting += rules[name].uses
    return used


def _size(rules: Mapping[str, _Part]) -> int:
    """The size of the root with all other rules written out in it, up to ``_NO_LEXEME``."""
    sizes: dict[str, int] = {}
    try:
        for name in TopologicalSorter({n: rule.uses for n, rule in rules.items()}).static_order():
            inner = sum(map(sizes.__getitem__, rules[name].uses))
            sizes[name] = min(rules[name].size + inner, _NO_LEXEME)
    except CycleError:
        return _NO_LEXEME
    return sizes["root"]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a rule in Lark, as a part of one lexeme and with a lexeme for each character."""

    lexeme: str
    rule: str
    size: int = 1  # parts of which it is made, or _NO_LEXEME
    uses: tuple[str, ...] = ()  # rules

    @classmethod
    def of(cls, parts: Sequence[_Part], write: Callable[[list[str]], str]) -> _Part:
        """What is made of parts."""
        return cls(
            write([part.lexeme for part in parts]),
            write([part.rule for part in parts]),
            1 + sum(part.size for part in parts),
            tuple(name for part in parts for name in part.uses),
        )


def _code(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


class _Reader:
    """A recursive descent parser; ``_at`` is the place in the text."""

    def __init__(self, text: str) -> None:
        self.numbers = {"root": 0}  # of the rules that are used, for their names in Lark
        self._text = text
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, _Part]:
        rules: dict[str, _Part] = {}
        self._skip(_LINES)
        while self._at < len(self._text):
            name = self._match(_NAME, "a rule's name")[0]
            if name in rules:
                self._fail(f"rule {name} is defined twice")
            self._skip(_SPACE)
            if not self._take("::="):
                self._fail(f"expected ::= after {name}")
            self._skip(_LINES)
            rules[name] = self._either(_SPACE)
            self._skip(_SPACE)
            if self._at < len(self._text) and not self._take("\n"):
                self._fail(f"unexpected {self._text[self._at]!r}")
            self._skip(_LINES)
        return rules

    def _either(self, space: re.Pattern[str]) -> _Part:
        """Options; ``space`` is what may stand between their parts."""
        options = [self._row(space)]
        while self._bar():
            self._skip(_LINES)
            options.append(self._row(space))
        if len(options) == 1:
            return options[0]
        return _Part.of(options, lambda texts: f"({' | '.join(texts)})")

    def _bar(self) -> bool:
        """Whether another option follows; its ``|`` may stand on the next line."""
        before = self._at
        self._skip(_LINES)
        if self._take("|"):
            return True
        self._at = before
        return False

    def _row(self, space: re.Pattern[str]) -> _Part:
        parts: list[_Part] = []
        while True:
            self._skip(space)
            part = self._part()
            if part is None:
                break
            self._skip(space)
            parts.append(self._repeated(part))
        if len(parts) == 1:
            return parts[0]
        return _Part.of(parts, lambda texts: f"({' '.join(texts)})" if texts else '""')

    def _part(self) -> _Part | None:
        char = self._peek()
        if char == '"':
            return self._string()
        if char == "[":
            return self._ranges()
        if char == "(":
            return self._group()
        if self._take("."):
            return _Part("/(?s:.)/", "/(?s:.)/")
        if char in ("<", "!"):
            negated, name = self._match(_TOKEN, "a token such as <think> or <[1000]>").groups()
            if negated and not name.startswith("["):
                self._fail(f"expected the number of the token, !<[id]>, got !<{name}>")
            token = f"<[^{name.strip('[]')}]>" if negated else f"<{name}>"
            return _Part("", token, _NO_LEXEME)  # lexemes are made of text
        name = self._skip(_NAME)
        if not name:
            return None
        number = self.numbers.setdefault(name, len(self.numbers))
        return _Part(f"R{number}", f"r{number}", 0, (name,))

    def _group(self) -> _Part:
        self._at += 1
        self._depth += 1
        self._check_depth(self._depth)
        inner = self._either(_LINES)
        self._skip(_LINES)
        if not self._take(")"):
            self._fail("expected )")
        self._depth -= 1
        return inner

    def _repeated(self, part: _Part) -> _Part:
        depth = self._depth
        while (char := self._peek()) and char in "*+?{":
            if char == "{":
                least, most = self._counts()
            else:
                self._at += 1
                least, most = _REPEATS[char]
            depth += 1  # each is a level of nesting
            self._check_depth(depth)
            if most == 0:
                part = _Part('""', '""')
                continue
            counts = f"{{{least},{'' if most is None else most}}}"
            lexeme, rule = f"({part.lexeme}){counts}", f"({part.rule}){counts}"
            part = _Part(lexeme, rule, part.size + 1, part.uses)
        return part

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            self._fail(f"groups are nested more than {MAX_DEPTH} deep")

    def _counts(self) -> tuple[int, int | None]:
        match = self._match(_COUNTS, "a repetition such as {2}, {2,} or {2,5}")
        low, comma, high = match.groups()
        if not low and not high:
            self._fail("a repetition needs a number")
        if any(len(n) > 6 or int(n or 0) > MAX_REPEAT for n in (low, high)):
            self._fail(f"repetitions go up to {MAX_REPEAT}")
        least = int(low or 0)
        most = int(high) if high else None if comma else least
        if most is not None and most < least:
            self._fail(f"{{{least},{most}}} allows nothing")
        return least, most

    def _string(self) -> _Part:
        self._at += 1
        chars = []
        while not self._take('"'):
            chars.append(self._char("string"))
        each = " ".join(map(quoted, chars))
        return _Part(quoted("".join(chars)), f"({each})" if chars else '""')

    def _ranges(self) -> _Part:
        self._at += 1
        negated = self._take("^")
        ranges = []
        while not self._take("]"):
            low = high = self._char("class")
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._char("class")
            if high < low:
                self._fail(f"the range {low}-{high} is empty")
            ranges.append(_code(low) if low == high else f"{_code(low)}-{_code(high)}")
        if not ranges:
            self._fail("an empty class matches nothing")
        expression = f"/[{'^' if negated else ''}{''.join(ranges)}]/"
        return _Part(expression, expression)

    def _char(self, kind: str) -> str:
        char = self._peek()
        if char in ("", "\n"):
            self._fail(f"the {kind} has no end")
        self._at += 1
        if char != "\\":
            return char
        escape = self._peek()
        self._at += 1
        if escape in _ESCAPES:
            return _ESCAPES[escape]
        if escape in _WIDTHS:
            digits = self._text[self._at : self._at + _WIDTHS[escape]]
            if len(digits) < _WIDTHS[escape] or not re.fullmatch("[0-9A-Fa-f]+", digits):
                self._fail(f"\\{escape} needs {_WIDTHS[escape]} hexadecimal digits")
            self._at += len(digits)
            code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                self._fail(f"\\{escape}{digits} is not a character")
            return chr(code)
        if not escape or escape.isalnum() or escape.isspace():
            self._fail(f"\\{escape} is not an escape")
        return escape

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _skip(self, pattern: re.Pattern[str]) -> str:
        """What matches here, if anything does."""
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:
            self._fail(f"expected {what}")
        self._at = match.end()
        return match

    def _fail(self, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise GrammarError(f"GBNF, line {line}: {reason}")
