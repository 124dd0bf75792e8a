"""GBNF becomes Lark that derives the same texts."""

from __future__ import annotations

import itertools
from typing import TypeAlias

import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import GrammarError
from mlxgen.filters import Lark, is_gbnf, lark_of

from ..effort import tries
from .helpers import accepts, byte_level, constrained

SIGNS = ("*", "+", "?", "{{2}}", "{{1,2}}", "{{0}}", "{{0,0}}", "{{,1}}", "{{2,}}")


def test_tokens_may_be_named_or_numbered() -> None:
    vocabulary = byte_level()
    names = {vocabulary.piece(token).decode(): token for token in vocabulary.added}
    call, end = names["<tool_call>"], names["</tool_call>"]
    (x,) = vocabulary.continue_with(b"x")
    for written, tokens, taken in (
        (f"<tool_call> [a-z] <[{end}]>", [call, x, end], 3),
        (f"<tool_call> [a-z] <[{end}]>", vocabulary.continue_with(b"<tool_call>x"), 0),
        (f"!<[{call}]> <tool_call>", [x, call], 2),
        (f"!<[{call}]> <tool_call>", [call, call], 0),
    ):
        spec = Lark(lark_of(f"root ::= {written}"))
        assert constrained(spec, vocabulary=vocabulary).validate(tokens) == taken


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
        spec = Lark(lark_of(grammar))
        constrained(spec, vocabulary=byte_level())
    except GrammarError:
        return  # nothing can be derived, or too deep for the engine
    for length in range(4):
        for chars in itertools.product("abc", repeat=length):
            text = "".join(chars)
            assert accepts(spec, text, byte_level()) == bool(meant.fullmatch(text)), text
