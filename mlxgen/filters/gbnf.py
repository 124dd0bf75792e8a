"""llama.cpp's GBNF, rewritten in llguidance's dialect of Lark.

Invariant: both grammars derive the same texts.

llguidance cuts text into the longest lexemes that fit, and GBNF has no lexemes. So a grammar
without recursion becomes one single lexeme, and any other is written with a lexeme for each
character: neither leaves anything to cut. (llguidance has its own ``gbnf_to_lark``, which makes
lexemes of rules: ``("a" | "ab") "bc"`` then refuses ``abc``. It supports no tokens and none of
llama.cpp's newer syntax.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from ..errors import GrammarError
from .gbnf_syntax import Class, Either, Literal, Node, Ref, Repeat, Row, Token, read_gbnf, walk
from .grammar import quoted

MAX_EXPANDED = 4000  # parts of a grammar that is written as one lexeme, at most

_RULE = re.compile(r"^[ \t]*[A-Za-z0-9_-]+[ \t]*::=", re.MULTILINE)


def is_gbnf(grammar: str) -> bool:
    """Whether a grammar is written in GBNF rather than in Lark."""
    return _RULE.search(grammar) is not None


def lark_of(grammar: str) -> str:
    """The same grammar in Lark. GrammarError, with the line, if it is not GBNF."""
    rules = read_gbnf(grammar)
    if "root" not in rules:
        raise GrammarError("GBNF: there is no rule named root; define it")
    for name, node in rules.items():
        for inner in walk(node):
            if isinstance(inner, Ref) and inner.name not in rules:
                raise GrammarError(f"GBNF: rule {name} uses {inner.name}, which is not defined")
    names = {name: f"r{i}" for i, name in enumerate(_used(rules))}
    size = _Sizes(rules).of("root")
    if size is not None and size <= MAX_EXPANDED:
        names = {name: written.upper() for name, written in names.items()}
        lines = [f"{names[name]}: {_lexeme(rules[name], names)}" for name in names]
    else:
        lines = [f"{names[name]}: {_rule(rules[name], names)}" for name in names]
    return "\n".join([f"start: {names['root']}", *lines, ""])


def _used(rules: Mapping[str, Node]) -> list[str]:
    """The rules that the root uses, directly or not; the root first."""
    used = {"root": None}
    queue = ["root"]
    for name in queue:
        for node in walk(rules[name]):
            if isinstance(node, Ref) and node.name not in used:
                used[node.name] = None
                queue.append(node.name)
    return queue


class _Sizes:
    """How large each rule gets with all others written out in it; None if it is recursive."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._known: dict[str, int | None] = {}

    def of(self, root: str) -> int | None:
        """The size of a rule. (A loop, because rules may be a long chain; it visits each once.)"""
        path = [(root, self._needs(root))]
        open_rules = {root}
        while path:
            name, needs = path[-1]
            need = next((need for need in needs if need not in self._known), None)
            if need is None:
                self._known[name] = self._size(self._rules[name])
                open_rules.discard(name)
                path.pop()
            elif need in open_rules:
                return None  # it is recursive
            else:
                open_rules.add(need)
                path.append((need, self._needs(need)))
        return self._known[root]

    def _needs(self, name: str) -> Iterator[str]:
        return (node.name for node in walk(self._rules[name]) if isinstance(node, Ref))

    def _size(self, node: Node) -> int | None:
        total = 0
        for inner in walk(node):
            if isinstance(inner, Token):
                return None  # lexemes are made of text
            size = self._known[inner.name] if isinstance(inner, Ref) else 1
            if size is None or total > MAX_EXPANDED:
                return None
            total += size
        return total


def _lexeme(node: Node, names: Mapping[str, str]) -> str:
    """A node as a part of one lexeme."""
    if isinstance(node, Literal):
        return quoted(node.text)
    if isinstance(node, Ref):
        return names[node.name]
    return _common(node, names, _lexeme)


def _rule(node: Node, names: Mapping[str, str]) -> str:
    """A node as a part of a rule, with a lexeme for each character."""
    if isinstance(node, Literal):
        return f"({' '.join(map(quoted, node.text))})" if node.text else '""'
    if isinstance(node, Ref):
        return names[node.name]
    return _common(node, names, _rule)


def _common(node: Node, names: Mapping[str, str], write: _Write) -> str:
    if isinstance(node, Class):
        return _class(node)
    if isinstance(node, Token):
        inner = node.name.strip("[]")
        return f"<[^{inner}]>" if node.negated else f"<{node.name}>"
    if isinstance(node, Row):
        return f"({' '.join(write(part, names) for part in node.parts)})" if node.parts else '""'
    if isinstance(node, Either):
        return f"({' | '.join(write(option, names) for option in node.options)})"
    assert isinstance(node, Repeat)
    most = "" if node.most is None else str(node.most)
    return f"({write(node.part, names)}){{{node.least},{most}}}"


def _class(node: Class) -> str:
    if not node.ranges:
        return "/(?s:.)/"
    ranges = (
        _code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in node.ranges
    )
    return f"/[{'^' if node.negated else ''}{''.join(ranges)}]/"


def _code(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


_Write: TypeAlias = Callable[[Node, Mapping[str, str]], str]
