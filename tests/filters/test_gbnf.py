"""GBNF becomes Lark that derives the same texts."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any, TypeAlias

import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import GrammarError
from mlxgen.filters import Lark, is_gbnf, lark_of
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import byte_level_tokenizer

from ..effort import tries

SIGNS = ("*", "+", "?", "{{2}}", "{{1,2}}", "{{0}}", "{{0,0}}", "{{,1}}", "{{2,}}")
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


# ---- against expressions that call each other ----------------------------------------------------

ATOMS = {
    '"a"': "a",
    '"ab"': "ab",
    '"b"': "b",
    '""': "",
    "[ab]": "[ab]",
    "[^a]": "[^a]",
    "[b-c]": "[b-c]",
    "other": "(?&other)",
    "root": "(?&root)",
}
"""Expressions in GBNF, and what means the same to ``regex``, as what is made of them does."""

Pair: TypeAlias = tuple[str, str]


def both(form: str, *parts: Pair) -> Pair:
    written, meant = zip(*parts, strict=True)
    return form.format(*written), form.replace(" ", "").format(*meant)


EXPRESSIONS = st.recursive(
    st.sampled_from(sorted(ATOMS.items())),
    lambda inner: st.one_of(
        st.builds(both, st.sampled_from(["({} {})", "({} | {})"]), inner, inner),
        st.builds(both, st.sampled_from(["({})" + sign for sign in SIGNS]), inner),
    ),
    max_leaves=6,
)


@settings(max_examples=tries(60))
@given(EXPRESSIONS, EXPRESSIONS)
def test_any_grammar_takes_exactly_its_texts(root: Pair, other: Pair) -> None:
    grammar = f'root ::= "a" ({root[0]}) | "b"\nother ::= "c" | "c" {other[0]}'
    rules = f"(?P<root>a(?:{root[1]})|b)(?P<other>c|c(?:{other[1]}))"
    meant = regex.compile(f"(?(DEFINE){rules})(?&root)")
    try:
        bound(grammar)
    except GrammarError:
        return  # nothing can be derived, or too deep for the engine
    for length in range(4):
        for chars in itertools.product("abc", repeat=length):
            text = "".join(chars)
            assert takes(grammar, text) == bool(meant.fullmatch(text)), text
