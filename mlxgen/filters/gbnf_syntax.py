r"""llama.cpp's GBNF as a tree.

Invariant: llama.cpp takes the grammar of every tree, apart from rules that are not defined;
and no tree is deeper than ``MAX_DEPTH`` allows.

    root ::= "yes" | "no" [.!]{0,3}     strings, classes, repetition
    name ::= [^"\\\n]+ | (a | b)?       negated classes, groups, other rules
    mark ::= <think> | <[1000]>         tokens, by name or number; ! before one: any other
    # to the end of the line            comments
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from ..errors import GrammarError

MAX_DEPTH = 100
MAX_REPEAT = 2000

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_TOKEN = re.compile(r"(!?)<(\[\d+\]|[^<>\s\[\]]+)>")
_COUNTS = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_WIDTHS = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Literal:
    """A string."""

    text: str


@dataclass(frozen=True, slots=True)
class Class:
    """A character in one of the ranges, or (negated) in none; ``.`` is negated without ranges."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Token:
    """A token by its name or ``[number]``, or (negated) any other."""

    name: str
    negated: bool


@dataclass(frozen=True, slots=True)
class Ref:
    """Another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Row:
    """One part after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of several."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part ``least`` to ``most`` times; None: without limit."""

    part: Node
    least: int
    most: int | None


Node: TypeAlias = Literal | Class | Token | Ref | Row | Either | Repeat


def walk(node: Node) -> Iterator[Node]:
    """All nodes of a tree."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, Row):
            stack.extend(node.parts)
        elif isinstance(node, Either):
            stack.extend(node.options)
        elif isinstance(node, Repeat):
            stack.append(node.part)


class _Reader:
    """A recursive descent parser; ``_at`` is the place in the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._space(newlines=True)
        while self._at < len(self._text):
            name = self._match(_NAME, "a rule's name")[0]
            if name in rules:
                self._fail(f"rule {name} is defined twice")
            self._space(newlines=False)
            if not self._take("::="):
                self._fail(f"expected ::= after {name}")
            self._space(newlines=True)
            rules[name] = self._either(nested=False)
            self._space(newlines=False)
            if self._at < len(self._text) and not self._take("\n"):
                self._fail(f"unexpected {self._text[self._at]!r}")
            self._space(newlines=True)
        return rules

    def _either(self, *, nested: bool) -> Node:
        options = [self._row(nested=nested)]
        while self._bar(nested=nested):
            self._space(newlines=True)
            options.append(self._row(nested=nested))
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _bar(self, *, nested: bool) -> bool:
        """Whether another option follows; its ``|`` may stand on the next line."""
        before = self._at
        self._space(newlines=True)
        if self._take("|"):
            return True
        if not nested:
            self._at = before
        return False

    def _row(self, *, nested: bool) -> Node:
        parts: list[Node] = []
        while True:
            self._space(newlines=nested)
            part = self._part()
            if part is None:
                return parts[0] if len(parts) == 1 else Row(tuple(parts))
            self._space(newlines=nested)
            parts.append(self._repeated(part))

    def _part(self) -> Node | None:
        char = self._peek()
        if char == '"':
            return self._string()
        if char == "[":
            return self._class()
        if char == "(":
            return self._group()
        if char == ".":
            self._at += 1
            return Class((), negated=True)
        if char in ("<", "!"):
            negated, name = self._match(_TOKEN, "a token such as <think> or <[1000]>").groups()
            if negated and not name.startswith("["):
                self._fail(f"expected the number of the token, !<[id]>, got !<{name}>")
            return Token(name, bool(negated))
        rule = _NAME.match(self._text, self._at)
        if rule is None:
            return None
        self._at = rule.end()
        return Ref(rule[0])

    def _group(self) -> Node:
        self._at += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"groups are nested more than {MAX_DEPTH} deep")
        inner = self._either(nested=True)
        if not self._take(")"):
            self._fail("expected )")
        self._depth -= 1
        return inner

    def _repeated(self, part: Node) -> Node:
        while True:
            char = self._peek()
            if char in ("*", "+", "?"):
                self._at += 1
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            elif char == "{":
                least, most = self._counts()
            else:
                return part
            self._depth += 1  # each is a level of nesting
            if self._depth > MAX_DEPTH:
                self._fail(f"groups are nested more than {MAX_DEPTH} deep")
            part = Repeat(part, least, most)

    def _counts(self) -> tuple[int, int | None]:
        match = self._match(_COUNTS, "a repetition such as {2}, {2,} or {2,5}")
        low, comma, high = match.groups()
        if not low and not high:
            self._fail("a repetition needs a number")
        if len(low) > 6 or len(high) > 6:
            self._fail(f"repetitions go up to {MAX_REPEAT}")
        least = int(low or 0)
        most = int(high) if high else None if comma else least
        if most is not None and most < least:
            self._fail(f"{{{least},{most}}} allows nothing")
        if max(least, most or 0) > MAX_REPEAT:
            self._fail(f"repetitions go up to {MAX_REPEAT}")
        return least, most

    def _string(self) -> Node:
        self._at += 1
        chars = []
        while self._peek() != '"':
            chars.append(self._char("string"))
        self._at += 1
        return Literal("".join(chars))

    def _class(self) -> Node:
        self._at += 1
        negated = self._take("^")
        ranges = []
        while self._peek() != "]":
            low = high = self._char("class")
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._char("class")
            if high < low:
                self._fail(f"the range {low}-{high} is empty")
            ranges.append((low, high))
        self._at += 1
        if not ranges:
            self._fail("an empty class matches nothing")
        return Class(tuple(ranges), negated)

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

    def _space(self, *, newlines: bool) -> None:
        while True:
            char = self._peek()
            if char in (" ", "\t", "\r") or (newlines and char == "\n"):
                self._at += 1
            elif char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                return

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:
            self._fail(f"expected {what}")
        self._at = match.end()
        return match

    def _fail(self, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise GrammarError(f"GBNF, line {line}: {reason}")


def read_gbnf(grammar: str) -> dict[str, Node]:
    """The rules by name. GrammarError, with the line, if the text is not GBNF."""
    return _Reader(grammar).rules()
