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
from collections.abc import Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, NoReturn

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
_REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1), "{": None}
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
    for name, other in reader.named:
        if other not in rules:
            raise GrammarError(f"GBNF: rule {name} uses {other}, which is not defined")
    uses = {name: [part.uses for part in parts if part.uses] for name, parts in rules.items()}
    used, waiting = dict[str, list[str]](), ["root"]  # reachable from the root, which comes first
    while waiting:
        if (name := waiting.pop()) not in used:
            used[name] = uses[name]
            waiting += uses[name]
    sizes: dict[str, int] = {}  # with all other rules written out in them
    with suppress(CycleError):
        for name in TopologicalSorter(used).static_order():
            size = sum(part.size for part in rules[name])
            sizes[name] = min(size + sum(map(sizes.__getitem__, used[name])), _NO_LEXEME)
    is_one = sizes.get("root", _NO_LEXEME) < _NO_LEXEME
    numbers = {name: f"{'R' if is_one else 'r'}{number}" for number, name in enumerate(used)}
    lines = [f"start: {numbers['root']}"]
    for name in used:
        parts = (numbers.get(p.uses) or (p.lexeme if is_one else p.rule) for p in rules[name])
        lines.append(f"{numbers[name]}: {' '.join(parts)}")
    return "\n".join([*lines, ""])


class _Part(NamedTuple):
    """A part of a rule in Lark: inside of a single lexeme, and with a lexeme for each character."""

    lexeme: str
    rule: str
    size: int = 1  # or _NO_LEXEME
    uses: str = ""  # the rule that this part refers to

    @classmethod
    def sign(cls, text: str) -> _Part:
        return cls(text, text, 0)


_NOTHING = _Part('""', '""')


def _code(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


class _Reader:
    """Reads one text; ``_at`` is the place in it.

    ``named``: pairs of a rule and one that it names, even where ``{0}`` drops the latter.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._rule = ""
        self.named: list[tuple[str, str]] = []

    def rules(self) -> dict[str, Sequence[_Part]]:
        rules: dict[str, Sequence[_Part]] = {}
        self._skip(_LINES)
        while self._at < len(self._text):
            name = self._match(_NAME, "a rule's name")[0]
            if name in rules:
                self._fail(f"rule {name} is defined twice")
            self._skip(_SPACE)
            if not self._take("::="):
                self._fail(f"expected ::= after {name}")
            self._skip(_LINES)
            self._rule = name
            rules[name] = self._parts()
            if self._at < len(self._text) and not self._take("\n"):
                self._fail(f"unexpected {self._text[self._at]!r}")
            self._skip(_LINES)
        return rules

    def _parts(self) -> Sequence[_Part]:
        """The parts of a rule up to its end, with the signs between them."""
        parts: list[_Part] = []
        groups: list[int] = []  # where the open ones begin
        last: int | None = None  # where the part begins that may be repeated
        levels = 0  # of nested repetition
        while True:
            self._skip(_LINES if groups else _SPACE)
            char = self._peek()
            levels = levels + 1 if last is not None and char in _REPEATS else 0
            if last is not None and levels:
                least, most = _REPEATS[char] or self._counts()
                self._at += char != "{"
                counts = f"){{{least},{'' if most is None else most}}}"
                parts[last:] = [_Part.sign("("), *parts[last:], _Part(counts, counts)]
                if most == 0:
                    parts[last:] = [_NOTHING]
            elif self._bar():
                parts += [_NOTHING] if last is None else []
                parts.append(_Part.sign("|"))
                last = None
            elif char == "(":
                self._at += 1
                groups.append(len(parts))
                parts.append(_Part.sign("("))
                last = None
            elif char == ")" and groups:
                self._at += 1
                parts += [_NOTHING] if last is None else []
                parts.append(_Part.sign(")"))
                last = groups.pop()
            else:
                part = self._part(char)
                if part is None:
                    break
                last = len(parts)
                parts.append(part)
            if len(groups) + levels > MAX_DEPTH:
                self._fail(f"groups are nested more than {MAX_DEPTH} deep")
        if groups:
            self._fail("expected )")
        return [*parts, *([_NOTHING] if last is None else [])]

    def _part(self, char: str) -> _Part | None:
        """A string, a class, any character, a token or a rule, if there is one here."""
        if char == '"':
            return self._string()
        if char == "[":
            return self._ranges()
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
        self.named.append((self._rule, name))
        return _Part("", "", uses=name)

    def _bar(self) -> bool:
        """Whether another option follows; its ``|`` may stand on the next line."""
        before = self._at
        self._skip(_LINES)
        if self._take("|"):
            self._skip(_LINES)
            return True
        self._at = before
        return False

    def _string(self) -> _Part:
        self._at += 1
        chars = []
        while not self._take('"'):
            chars.append(self._char("string"))
        each = " ".join(map(quoted, chars))
        return _Part(quoted("".join(chars)), f"({each})" if chars else '""')

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
        """Skips what the pattern matches here, and returns it."""
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
