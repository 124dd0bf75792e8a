"""The grammars' engine: what it must be asked for, what it costs, and its limits.

If a test fails with a newer llguidance, read the docstrings of ``mlxgen/filters/matcher.py``.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import llguidance
import pytest

from mlxgen import filters
from mlxgen.errors import FilterError, GrammarError
from mlxgen.filters import JsonSchema, Lark, Regex, fill_masks
from mlxgen.tokens import Vocabulary

from ..fakes import byte_level_tokenizer
from .helpers import (
    allowed,
    alphabet,
    byte_level,
    constrained,
    feed,
    ordinary,
    pieces,
    state,
    takes,
)


@pytest.fixture
def few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """An automaton is spent after 80 states."""
    limits = llguidance.LLParserLimits(max_lexer_states=80, verbose_errors=False)
    monkeypatch.setattr("mlxgen.filters.engine._LIMITS", limits)


def test_a_vocabulary_without_end_tokens_gets_an_id_without_a_token() -> None:
    vocabulary = Vocabulary(alphabet().tokenizer)
    vocabulary.eos = frozenset()
    constraint = constrained(Regex("ab?"), vocabulary=vocabulary)
    assert pieces(feed(constraint, "a")) == {b"b"}
    feed(constraint, "b")
    assert constraint.can_end() and constraint.ended()
    assert allowed(constraint) == set()


def test_a_filter_that_is_used_by_itself_refuses_what_no_text_may_hold() -> None:
    running = Regex("a+").bind(byte_level(), byte_level().size)
    a = byte_level().continue_with(b"a")
    for token in (-1, 10**6, *byte_level().eos):
        assert running.validate([*a, token]) == 1
        with pytest.raises(FilterError, match="ordinary token"):
            running.advance(token)
    running.advance(*a)
    assert running.can_end() and running.validate(a) == 1


def test_a_refused_grammar_keeps_nothing_of_what_was_tried() -> None:
    with contextlib.suppress(GrammarError):
        constrained(Regex("(b{1000}){1000}"))
    gc.collect()
    held = [each for each in gc.get_objects() if isinstance(each, TracebackType)]
    files = {each.tb_frame.f_code.co_filename for each in held}
    assert not [file for file in files if Path(file).parent == Path(filters.__file__).parent]


def ways(letters: int) -> Iterator[str]:
    return map("".join, itertools.product("abc", repeat=letters))


@pytest.mark.usefixtures("few_states")
def test_rows_that_share_an_automaton_do_not_suffer_when_one_of_them_spends_it() -> None:
    spec = Regex("[a-c]*c[a-c]{7}")  # its last letters make 256 states, and 80 are allowed
    waiting = [feed(constrained(spec), "ab") for _ in range(5)]
    expected, later = state(waiting[0]), state(feed(constrained(spec), "abc"))
    for text in itertools.islice(ways(6), 0, None, 7):  # a few states each, together too many
        constraint = constrained(spec)
        for letter in text:
            assert constraint.mask() is not None
            feed(constraint, letter)
    fill_masks(waiting[:1])
    assert state(waiting[0]) == expected
    assert waiting[1].forced() == []
    waiting[2] = waiting[2].fork()
    waiting[3].rewind(1)
    feed(waiting[3], "b")
    assert [state(feed(constraint, "c")) for constraint in waiting] == [later] * 5


@pytest.mark.usefixtures("few_states")
def test_a_limit_that_a_filter_meets_alone_is_an_error_with_the_reason() -> None:
    constraint = constrained(Regex("[a-z ]*(a|b)[a-z ]{7}x"), vocabulary=byte_level())
    with pytest.raises(FilterError, match=r"Regex.*too many states"):
        for letter in "".join(ways(5)):
            feed(constraint, letter).mask()
    constraint.rewind(1)
    assert takes(constraint, "abc")


@pytest.mark.parametrize("text", ["<tool_call>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"])
@pytest.mark.parametrize("forcing", [True, False])
def test_a_literal_that_is_the_text_of_an_added_token_is_spelled(text: str, forcing: bool) -> None:
    vocabulary = byte_level()
    spec = JsonSchema({"const": f"a {text} b"}, whitespace=None)
    constraint = constrained(spec, vocabulary=vocabulary)
    tokens: list[int] = []
    while not constraint.ended():
        run = constraint.forced() if forcing else [min(ordinary(constraint))]
        for token in run:
            constraint.advance(token)
        tokens += run
    assert json.loads(vocabulary.decode(tokens)) == f"a {text} b"
    assert not vocabulary.special.intersection(tokens)


def test_a_grammar_that_forces_text_without_end_is_cut_into_runs() -> None:
    later = constrained(Lark('start: "a" endless | "b"\nendless: "xy" endless'))
    assert pieces(feed(later, "a")) == {b"x"}
    assert 0 < len(later.forced()) <= 1024
    later.rewind(0)
    assert feed(later, "b").ended()


# ---- limits, and what is compiled ----------------------------------------------------------------


def options(count: int) -> list[str]:
    """A rule of very many parts, each of which may be missing."""
    parts = " ".join(f'("p{i}," | "q{i},")?' for i in range(count))
    return [f"options: {parts}"]


def test_a_limit_that_a_row_meets_later_fails_the_row() -> None:
    lark = "\n".join(['start: /[xy]{40}/ /[ab]/ options "c"', *options(6000)])
    constraint = feed(constrained(Lark(lark)), "x" * 40)
    assert state(constraint)
    before = state(constraint)
    with pytest.raises(FilterError, match=r"Lark.*too much may come next.*10000"):
        feed(constraint, "b")
    assert state(constraint) == before


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
    monkeypatch.setattr("mlxgen.filters.engine._LIMITS", limits)
    spec, text = costly(60)
    vocabulary = Vocabulary.of(byte_level_tokenizer())
    tokens = vocabulary.continue_with(text.encode())
    constraint = constrained(spec, vocabulary=vocabulary)
    for token in tokens[:-1]:
        constraint.advance(token)
    assert not constraint.can_end()
    running: Any = constraint.parts[0]
    running._matcher.consume_token(0)  # an error, for good: there is a replay from the start
    assert constraint.validate(tokens[-1:]) == 1
    constraint.advance(tokens[-1])
    assert constraint.can_end()
    constraint.rewind(3)
    assert constraint.validate(tokens[3:900]) == len(tokens[3:900])
