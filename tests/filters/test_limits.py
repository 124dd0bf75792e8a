"""What a grammar may cost while it runs, and when it is compiled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llguidance
import pytest

from mlxgen import Session
from mlxgen.errors import FilterError, GrammarError
from mlxgen.filters import Constraint, JsonSchema, Lark, Regex
from mlxgen.filters.compiled import Compiled, Grammar, GrammarEngine
from mlxgen.filters.matcher import GrammarFilter
from mlxgen.tokens import Vocabulary

from ..fakes import alphabet_tokenizer, byte_level_tokenizer
from .helpers import EXTRA, alphabet, constrained, feed, state, takes


def optional(count: int, whitespace: str | None = None) -> JsonSchema:
    properties = {f"p{i}": {"type": "integer"} for i in range(count)}
    return JsonSchema({"type": "object", "properties": properties}, whitespace=whitespace)


@pytest.mark.parametrize("whitespace", [None, " ?"])
def test_an_object_may_have_very_many_optional_properties(whitespace: str | None) -> None:
    constraint = constrained(optional(1200, whitespace))
    feed(constraint, '{"p3":1,"p700":2,')
    assert takes(constraint, '"p1199":3}')
    assert not takes(constraint, '"p5":3}')


def options(count: int) -> list[str]:
    """A rule of very many parts, each of which may be missing."""
    parts = " ".join(f'("p{i}," | "q{i},")?' for i in range(count))
    return [f"options: {parts}"]


def test_more_than_the_parser_takes_is_refused_with_that_reason() -> None:
    with pytest.raises(GrammarError, match=r"Lark.*too much may come next.*10000"):
        constrained(Lark("\n".join(["start: options", *options(6000)])))


@pytest.mark.parametrize("count", [600, 5000])
def test_places_that_are_nested_too_deeply_are_refused_before_the_engine_sees_them(
    count: int,
) -> None:
    links: dict[str, Any] = {
        f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}, "type": "object"}
        for i in range(count)
    }
    links[f"d{count}"] = {"type": "null"}
    with pytest.raises(GrammarError, match="nested too deeply"):
        constrained(JsonSchema({"$ref": "#/$defs/d0", "$defs": links}))


def test_a_panic_of_the_engine_is_a_sentence() -> None:
    with pytest.raises(GrammarError) as caught:
        constrained(optional(9000))
    assert "it is too large" in str(caught.value) and "backtrace" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_limit_that_a_row_meets_later_fails_the_row_and_compiles_nothing() -> None:
    lark = "\n".join(['start: /[xy]{40}/ /[ab]/ options "c"', *options(6000)])
    constraint = feed(constrained(Lark(lark)), "x" * 40)
    assert state(constraint)
    before = state(constraint)
    with (
        counted(constraint.vocabulary) as compiled,
        pytest.raises(FilterError, match=r"Lark.*too much may come next.*10000"),
    ):
        feed(constraint, "b")
    assert not compiled
    assert state(constraint) == before


def engine_of(vocabulary: Vocabulary) -> GrammarEngine:
    return GrammarEngine.of(vocabulary, vocabulary.size)


@contextmanager
def counted(vocabulary: Vocabulary) -> Iterator[list[Grammar]]:
    """The grammars that are compiled meanwhile."""
    engine = engine_of(vocabulary)
    compile_it = engine._compile
    compiled: list[Grammar] = []

    def counting(grammar: Grammar) -> Compiled:
        compiled.append(grammar)
        return compile_it(grammar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_compile", counting)
        yield compiled


def test_a_rewind_that_is_a_replay_compiles_nothing_even_if_the_grammar_was_forgotten() -> None:
    vocabulary = alphabet()
    constraint = constrained(Lark('start: t "z"\nt[max_tokens=9]: /[a-x]+/'), vocabulary=vocabulary)
    feed(constraint, "aa")
    expected = state(constraint)
    feed(constraint, "bb")
    for index in range(40):
        constrained(Regex(f"b{index}"), vocabulary=vocabulary)
    with counted(vocabulary) as compiled:
        constraint.rewind(2)
    assert state(constraint) == expected
    assert not compiled


def spend(constraint: Constraint) -> None:
    """Visit states of the automaton, until it has no room for more."""
    running = constraint.parts[0]
    assert isinstance(running, GrammarFilter)
    compiled = running._compiled
    for number in range(32, 512):
        if compiled.spent:
            return
        feed(constraint.fork(), f"{number:b}".replace("0", "a").replace("1", "c"))
    raise AssertionError("the automaton takes more than was visited")


@pytest.mark.usefixtures("few_states")
def test_an_engine_that_compiles_ahead_has_a_spare_for_rows_that_share_an_automaton() -> None:
    vocabulary = Vocabulary.of(alphabet_tokenizer(EXTRA))
    engine_of(vocabulary).compile_ahead()
    spec = Regex("[a-c]*c[a-c]{7}")
    rows = [feed(constrained(spec, vocabulary=vocabulary), "ab") for _ in range(3)]
    expected = [state(row) for row in rows]
    with counted(vocabulary) as compiled:
        spend(rows[0])
        assert [state(row) for row in rows] == expected
        assert takes(rows[1], "abcabc")
        with pytest.raises(FilterError, match=r"Regex.*simpler"):
            spend(rows[1])
        assert not compiled
        fresh = constrained(spec, vocabulary=vocabulary)
        assert compiled
    assert takes(fresh, "abcabcacab")


def costly(count: int) -> tuple[JsonSchema, str]:
    """A schema of which every property makes the automaton grow, and an instance."""
    properties = {
        f"property_{index}": {"type": "string", "pattern": f"^[a-z]{{1,{20 + index}}}[0-9]*$"}
        for index in range(count)
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return JsonSchema(schema), json.dumps(dict.fromkeys(properties, "abcdefghij1234"))


def test_long_texts_need_no_masks_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = llguidance.LLParserLimits(step_lexer_fuel=1500, verbose_errors=False)
    monkeypatch.setattr("mlxgen.filters.compiled._LIMITS", limits)
    spec, text = costly(60)
    vocabulary = Vocabulary.of(byte_level_tokenizer())
    tokens = vocabulary.continue_with(text.encode())
    with counted(vocabulary) as compiled:
        constraint = constrained(spec, vocabulary=vocabulary)
        for token in tokens[:-1]:
            constraint.advance(token)
        assert not constraint.can_end()
        running = constraint.parts[0]
        assert isinstance(running, GrammarFilter)
        assert len(compiled) == 1
        running._compiled.spent = True  # a replay from the start, by another automaton
        assert constraint.validate(tokens[-1:]) == 1
        assert len(compiled) == 2
        assert not running._compiled.spent
    constraint.advance(tokens[-1])
    assert constraint.can_end()
    constraint.rewind(3)
    assert constraint.validate(tokens[3:900]) == len(tokens[3:900])


def test_a_session_takes_a_long_prefix_of_a_large_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = llguidance.LLParserLimits(step_lexer_fuel=1500, verbose_errors=False)
    monkeypatch.setattr("mlxgen.filters.compiled._LIMITS", limits)
    spec, text = costly(60)
    tokenizer = byte_level_tokenizer()
    tokens = Vocabulary.of(tokenizer).continue_with(text.encode())
    session = Session(tokenizer, filters=[spec], prefix=tokens[:-1], max_tokens=len(tokens) + 9)
    assert session.mask() is not None


@pytest.mark.parametrize("pattern", ["(a{1,100}b?){1,100}", "(.{1,300},?){1,300}"])
def test_what_would_die_after_some_tokens_is_refused_at_once_or_checked_at_the_end(
    pattern: str,
) -> None:
    with pytest.raises(GrammarError, match="it is too large; use fewer or shorter repetitions"):
        constrained(Regex(pattern), vocabulary=Vocabulary.of(byte_level_tokenizer()))
    spec = JsonSchema({"type": "string", "pattern": f"^{pattern}$"}, whitespace=None)
    constraint = constrained(spec)
    assert constraint.checks
    feed(constraint, '"' + "a" * 300)
    assert constraint.mask() is not None
    assert feed(constraint, '"').objection() is None


def test_short_repetitions_within_others_are_held() -> None:
    spec = JsonSchema({"type": "string", "pattern": r"^([0-9]{1,3}\.){3}[0-9]{1,3}$"})
    assert not constrained(spec).checks
    assert takes(constrained(Regex(r"([a-z]{1,30} ){1,20}")), "ab cd ")
