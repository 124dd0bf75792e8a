from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import GrammarError, OptionError
from mlxgen.filters import Choice, Lark, Regex, Specification, Substring

from ..effort import tries
from .helpers import (
    accepts,
    allowed,
    alphabet,
    byte_level,
    constrained,
    feed,
    pieces,
    sentencepiece,
    wordpiece,
)


@pytest.mark.parametrize("text", ["a", "b", "bb", "abab", "", "c", "a\n"])
@pytest.mark.parametrize("pattern", ["[ab]+", "(a|b)*", "^ab*$", "a?b{0,2}", "a/b|a", 'b"?'])
def test_a_regex_takes_what_pythons_takes_as_a_whole(pattern: str, text: str) -> None:
    assert accepts(Regex(pattern), text) == bool(re.fullmatch(pattern.strip("^$"), text))


def test_flags_of_a_compiled_expression_are_taken_over_or_refused() -> None:
    assert accepts(Regex(re.compile("ab.", re.I | re.S)), "AB\n")
    assert not accepts(Regex(re.compile("ab.")), "ab\n")
    assert Regex(re.compile("a")) == Regex("a")
    assert Regex(re.compile("a", re.U)) == Regex("a")
    for flag in (re.M, re.A):
        with pytest.raises(OptionError, match=flag.name):
            Regex(re.compile("a", flag))
    with pytest.raises(OptionError, match="ASCII"):
        Regex(re.compile("(?a)\\w"))
    with pytest.raises(GrammarError, match="flag"):
        constrained(Regex(re.compile("(?a:\\w)")))
    with pytest.raises(OptionError, match="compiled"):
        Regex(re.compile(b"a"))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="compiled"):
        Regex(5)  # type: ignore[arg-type]


def test_the_debug_flag_is_ignored() -> None:
    pattern = re.compile("a.b", re.S)
    debugged = re.compile("a.b", re.S | re.DEBUG)
    assert debugged.flags & re.DEBUG
    assert Regex(debugged) == Regex(pattern)


@pytest.mark.parametrize(
    "pattern",
    [re.compile("a b", re.X), re.compile("(?x)a b"), "(?x)a b", "a(?x: b)", "a(?ix-s: b)"],
)
def test_the_verbose_mode_is_refused(pattern: str | re.Pattern[str]) -> None:
    with pytest.raises(OptionError, match=r"without the verbose mode \(X\), got .*; write it"):
        Regex(pattern)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"\(?x\)", "(x)"),
        ("[(?x)]", "x"),
        ("a(?#(?x) [)b", "ab"),
        ("(?P<x>a)", "a"),
        ("(?:x)", "x"),
    ],
)
def test_what_only_looks_like_the_verbose_mode_is_taken(pattern: str, text: str) -> None:
    assert Regex(pattern).pattern == pattern
    if "#" not in pattern:  # the engine knows no remarks
        assert accepts(Regex(pattern), text)


def test_lark_takes_rules_terminals_and_embedded_json() -> None:
    lark = Lark('start: "n=" NUMBER rest?\nrest: ";" %json {"enum": ["<x>"]}\nNUMBER: /[0-9]+/')
    assert accepts(lark, "n=12")
    assert accepts(lark, 'n=1;"<x>"')
    assert not accepts(lark, "n=;")
    with pytest.raises(OptionError, match="Lark: expected a string"):
        Lark(5)  # type: ignore[arg-type]


def test_names_of_tokens_are_left_alone_in_literals_expressions_and_comments() -> None:
    vocabulary = byte_level()
    lark = Lark('start: "<tool_call>" /<tool_call>/ "\\"<tool_call>" // <tool_call>')
    assert accepts(lark, '<tool_call><tool_call>"<tool_call>', vocabulary)


def test_a_choice_is_exactly_one_of_the_options() -> None:
    choice = Choice(["ab", "abc", "x/y", 'q"\\', "abc"])
    assert choice.options == ("ab", "abc", "x/y", 'q"\\')
    for option in choice.options:
        assert accepts(choice, option)
    for text in ("a", "abcd", "", "x"):
        assert not accepts(choice, text)
    constraint = feed(constrained(choice), "ab")
    assert constraint.can_end() and pieces(constraint) == {b"c"}
    assert accepts(Choice(["", "a"]), "") and accepts(Choice(["", "a"]), "a")


@settings(max_examples=tries(60))
@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4), st.text(max_size=4))
def test_a_choice_takes_any_text_literally(options: list[str], other: str) -> None:
    vocabulary = byte_level()
    choice = Choice(options)
    for option in options:
        assert accepts(choice, option, vocabulary)
    assert accepts(choice, other, vocabulary) == (other in options)


def test_a_choice_of_thousands_is_one_automaton() -> None:
    choice = Choice(f"value number {index}" for index in range(3000))
    assert accepts(choice, "value number 2999")
    assert not accepts(choice, "value number 3000")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Choice([]),
        lambda: Choice("abc"),
        lambda: Choice([1]),  # type: ignore[list-item]
        lambda: Choice(["\ud800"]),
        lambda: Substring(""),
        lambda: Substring("a", by="lines"),  # type: ignore[arg-type]
        lambda: Substring(5),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_a_text_is_refused_when_it_is_written(make: object) -> None:
    with pytest.raises(OptionError, match=r"filters: (Choice|Substring)"):
        make()  # type: ignore[operator]


def test_a_substring_is_a_passage_of_words_or_characters() -> None:
    text = 'the "quick" brown\nfox'
    words, chars = Substring(text), Substring(text, by="chars")
    for passage in ("the", ' "quick"', "quick", "brown\nfox", text):
        assert accepts(words, passage), passage
        assert accepts(chars, passage), passage
    assert accepts(chars, "row") and not accepts(words, "row")
    for passage in ("", "quick fox", "fox the"):
        assert not accepts(words, passage) and not accepts(chars, passage)
    assert accepts(Substring(text, allow_empty=True), "")


SPECS: list[Specification] = [
    Regex("a+"),
    Lark('start: "a"'),
    Choice(["a", "b"]),
    Substring("a"),
]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_specifications_are_values_and_bind_again_and_again(spec: Specification) -> None:
    assert spec == eval(repr(spec))
    assert hash(spec) == hash(eval(repr(spec)))
    first, second = constrained(spec), constrained(spec)
    before = allowed(second)
    feed(first, "a")
    assert allowed(second) == before
    with pytest.raises(AttributeError):
        setattr(spec, dataclasses.fields(spec)[0].name, "b")  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_text_may_lose_one_leading_space_and_no_more(spec: Specification) -> None:
    vocabulary = sentencepiece()
    for start, good in (("a", True), (" a", True), ("  a", False)):
        constraint = constrained(spec, vocabulary=vocabulary)
        tokens = [vocabulary.token_of(bytes([byte])) for byte in start.encode()]
        assert (constraint.validate([t for t in tokens if t is not None]) == len(tokens)) is good
    assert not accepts_raw(spec, " a")


def accepts_raw(spec: Specification, text: str) -> bool:
    constraint = constrained(spec, vocabulary=sentencepiece(), strips_space=False)
    token = constraint.vocabulary.token_of(text[:1].encode())
    return constraint.validate([token or 0]) == 1


def test_the_text_after_a_dropped_space_is_constrained() -> None:
    constraint = constrained(Regex(" ?a"), vocabulary=sentencepiece())
    space = constraint.vocabulary.token_of(b" ") or 0
    a = constraint.vocabulary.token_of(b"a") or 0
    assert constraint.validate([space, space, a]) == 3  # the text is " a"
    assert constraint.validate([space, a]) == 2  # the text is "a"
    assert constraint.validate([a]) == 1
    assert constraint.validate([space, space, space]) == 2
    constraint.advance(space)
    twin = constraint.fork()
    constraint.advance(a)
    assert constraint.ended() and not twin.can_end()
    constraint.rewind(0)
    assert constraint.validate([a]) == 1


def test_a_vocabulary_that_cannot_spell_any_text_of_a_grammar_says_so() -> None:
    vocabulary = wordpiece()  # its words come with their space: " the", " sad"
    for options in (["zebra"], ["the zebra"]):
        with pytest.raises(GrammarError, match=r"Choice.*no text satisfies it"):
            constrained(Choice(options), vocabulary=vocabulary)
    constraint = constrained(Choice(["the sad"]), vocabulary=vocabulary)
    for token in constraint.forced():
        constraint.advance(token)
    assert constraint.ended()


def test_compiled_grammars_are_shared_and_forgotten() -> None:
    from mlxgen.filters.compiled import _COPIES, _KEPT, GrammarEngine

    vocabulary = alphabet()
    engine = GrammarEngine.of(vocabulary, vocabulary.size)
    for index in range(_KEPT + 3):
        constrained(Regex(f"a{index}"))
    assert len(engine._kept) == _KEPT
    spec = Regex("shared")
    for _ in range(_COPIES + 3):
        constraint = constrained(spec)
    assert feed(constraint, "shared").ended()


def test_of_long_forced_texts_only_a_few_are_remembered() -> None:
    from mlxgen.filters.compiled import _LONG_TEXTS, GrammarEngine, _Tokens

    vocabulary = alphabet()
    engine = GrammarEngine.of(vocabulary, vocabulary.size)
    tokens = _Tokens(vocabulary, engine.size, 0)
    for index in range(3 * _LONG_TEXTS):
        assert tokens(f"{index:0400}") == vocabulary.continue_with(b"%0400d" % index)
        assert tokens(f"{index}") == vocabulary.continue_with(b"%d" % index)
    assert tokens._long.cache_info().currsize == _LONG_TEXTS
    assert tokens._short.cache_info().currsize == 3 * _LONG_TEXTS


@pytest.mark.parametrize(
    "grammar",
    [
        'start: t "z"\nt[stop="x"]: /[a-w]+/',
        "start: t\nt[capture, stop=/x|y/]: /[a-z]*/",
        'start: t "."\n  t[ stop = "" ]: /[a-z]*/',
    ],
)
def test_a_rule_with_a_stop_is_refused_when_it_is_written(grammar: str) -> None:
    with pytest.raises(OptionError, match=r"stop=.*suffix="):
        Lark(grammar)


def test_a_stop_in_a_text_or_a_remark_is_none() -> None:
    assert accepts(
        Lark('start: A B\nA: "x[stop=1]:"\n// t[stop="x"]: "y"\nB: /[stop=]/'), "x[stop=1]:s"
    )
    assert accepts(Lark('start: t "z"\nt[suffix="x"]: /[a-w]*/'), "abxz")
