"""GBNF becomes Lark that derives the same texts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import GrammarError
from mlxgen.filters import Lark
from mlxgen.filters.gbnf import is_gbnf, lark_of
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import byte_level_tokenizer

from ..effort import tries

VOCABULARY = Vocabulary.of(byte_level_tokenizer())


@cache
def bound(grammar: str) -> Any:
    return Lark(lark_of(grammar)).bind(VOCABULARY, VOCABULARY.size)


def takes(grammar: str, text: str | list[Token]) -> bool:
    """Whether a text is one of the grammar's."""
    filter = bound(grammar).fork()
    tokens = VOCABULARY.continue_with(text.encode()) if isinstance(text, str) else text
    for token in tokens:
        if not filter.validate([token]):
            return False
        filter.advance(token)
    return bool(filter.can_end())


def test_tokens_may_be_named_or_numbered() -> None:
    names = {VOCABULARY.piece(token).decode(): token for token in VOCABULARY.added}
    call, end = names["<tool_call>"], names["</tool_call>"]
    (x,) = VOCABULARY.continue_with(b"x")
    assert takes(f"root ::= <tool_call> [a-z] <[{end}]>", [call, x, end])
    assert not takes(f"root ::= <tool_call> [a-z] <[{end}]>", "<tool_call>x</tool_call>")
    assert takes(f"root ::= !<[{call}]> <tool_call>", [x, call])
    assert not takes(f"root ::= !<[{call}]> <tool_call>", [call, call])


def test_grammars_may_be_long_and_are_not_written_out() -> None:
    double = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60))
    assert len(lark_of(f'root ::= r0\n{double}\nr60 ::= "a" | ""')) < 4000
    chain = "\n".join(f"r{i} ::= r{i + 1}" for i in range(3000))
    assert "start" in lark_of(f'root ::= r0\n{chain}\nr3000 ::= "a"')
    names, rules = zip(*((f"r{i}", f'r{i} ::= "{i}"*') for i in range(8000)), strict=True)
    newline = "\n"
    assert "start" in lark_of(f"root ::= {' | '.join(names)}\n{newline.join(rules)}")
    assert "start" in lark_of(f"root ::= {' '.join(names[:300])}\n{newline.join(rules)}")


def test_gbnf_is_told_from_lark() -> None:
    assert is_gbnf('root ::= "a"') and is_gbnf('# c\n  a-b::="c"')
    assert not is_gbnf('start: "a ::= b"') and not is_gbnf("start: x\nx: /a::=/")


# ---- against a recogniser that knows nothing of grammars' engines --------------------------------

Ends: TypeAlias = Callable[["Recogniser", frozenset[int]], frozenset[int]]
"""Where a text may continue after an expression that starts at one of some places."""

Expression: TypeAlias = tuple[str, Ends]
"""An expression in GBNF, and what it means."""


class Recogniser:
    """Where a text may continue after each rule, found by repeating until nothing is new."""

    def __init__(self, rules: dict[str, Ends], text: str) -> None:
        self.text = text
        places = itertools.product(rules, range(len(text) + 1))
        self.known: dict[tuple[str, int], frozenset[int]] = dict.fromkeys(places, frozenset())
        while True:
            found = {(name, at): rules[name](self, frozenset([at])) for name, at in self.known}
            if found == self.known:
                break
            self.known = found

    @property
    def takes(self) -> bool:
        return len(self.text) in self.known["root", 0]


def literal(text: str) -> Expression:
    def ends(seen: Recogniser, starts: frozenset[int]) -> frozenset[int]:
        return frozenset(at + len(text) for at in starts if seen.text.startswith(text, at))

    return f'"{text}"', ends


def one_of(written: str, chars: str) -> Expression:
    def ends(seen: Recogniser, starts: frozenset[int]) -> frozenset[int]:
        return frozenset(at + 1 for at in starts if seen.text[at : at + 1] in [*chars])

    return written, ends


def rule(name: str) -> Expression:
    def ends(seen: Recogniser, starts: frozenset[int]) -> frozenset[int]:
        return frozenset().union(*(seen.known[name, at] for at in starts))

    return name, ends


def row(*parts: Expression) -> Expression:
    def ends(seen: Recogniser, starts: frozenset[int]) -> frozenset[int]:
        for _, part in parts:
            starts = part(seen, starts)
        return starts

    return " ".join(written for written, _ in parts), ends


def either(*options: Expression) -> Expression:
    def ends(seen: Recogniser, starts: frozenset[int]) -> frozenset[int]:
        return frozenset().union(*(option(seen, starts) for _, option in options))

    return f"({' | '.join(written for written, _ in options)})", ends


def repeated(part: Expression, sign: str, least: int, most: int | None) -> Expression:
    def ends(seen: Recogniser, starts: frozenset[int]) -> frozenset[int]:
        for _ in range(least):
            starts = part[1](seen, starts)
        out = starts
        for _ in range(len(seen.text) if most is None else most - least):
            starts = part[1](seen, starts)
            out |= starts
        return out

    return f"({part[0]}){sign}", ends


ATOMS = st.sampled_from(
    [
        *(literal(text) for text in ("a", "ab", "b", "")),
        one_of("[ab]", "ab"),
        one_of("[^a]", "bc"),
        one_of("[b-c]", "bc"),
        rule("other"),
        rule("root"),
    ]
)
REPEATS = [
    ("*", 0, None),
    ("+", 1, None),
    ("?", 0, 1),
    ("{2}", 2, 2),
    ("{1,2}", 1, 2),
    ("{0}", 0, 0),
]
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: row(*pair)),
        st.tuples(inner, inner).map(lambda pair: either(*pair)),
        st.tuples(inner, st.sampled_from(REPEATS)).map(lambda pair: repeated(pair[0], *pair[1])),
    ),
    max_leaves=6,
)


@settings(max_examples=tries(60))
@given(EXPRESSIONS, EXPRESSIONS)
def test_any_grammar_takes_exactly_its_texts(root: Expression, other: Expression) -> None:
    grammar = f'root ::= "a" ({root[0]}) | "b"\nother ::= "c" | {other[0]} "c"'
    rules = {
        "root": either(row(literal("a"), root), literal("b"))[1],
        "other": either(literal("c"), row(other, literal("c")))[1],
    }
    try:
        bound(grammar)
    except GrammarError:
        return  # nothing can be derived, or too deep for the engine
    for length in range(4):
        for chars in itertools.product("abc", repeat=length):
            text = "".join(chars)
            assert takes(grammar, text) == Recogniser(rules, text).takes, text
