"""Whether an end is found wherever there is one, checked against texts that are known."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator

import pytest

from mlxgen import load
from mlxgen.errors import DeadEndError, GrammarError
from mlxgen.filters import (
    AllOf,
    Allow,
    Constraint,
    EndSearch,
    Int32Words,
    JsonSchema,
    Lark,
    Regex,
    Specification,
)
from mlxgen.filters.bytewise import ByteVocabulary
from mlxgen.filters.closing import WORK
from mlxgen.filters.compiled import GrammarEngine
from mlxgen.filters.matcher import GrammarFilter
from mlxgen.tokens import Token, Vocabulary

from ..effort import tries
from .helpers import byte_level, constrained, feed, sentencepiece
from .random_schemas import FORMATS, PATTERNS, case


def found(constraint: Constraint, limit: int) -> list[Token] | None:
    """As a generation does that looks at each token; half the budget is there to look."""
    search = EndSearch(constraint)
    for _ in range(min(8, limit // 2)):
        run = search.find(limit)
        if run is not None:
            return run
    return None


def check(
    spec: Specification, text: str, vocabulary: Vocabulary, draw: random.Random
) -> Iterator[str]:
    """Places of a known text with twice its rest left, at which no end is found."""
    tokens = vocabulary.continue_with(text.encode())
    constraint = constrained(spec, vocabulary=vocabulary)
    places = {0, *(draw.randrange(len(tokens)) for _ in range(3))}
    for place, token in enumerate(tokens):
        rest = tokens[place:]
        if place in places and not constraint.can_end():
            run = found(constraint, 2 * len(rest))
            if run is None:
                yield f"{vocabulary.decode(tokens[:place])!r} has no end, but {rest}"
                continue
            twin = constraint.fork()
            for step in run:
                assert not twin.can_end()
                twin.advance(step)
            assert twin.can_end()
        constraint.advance(token)


@pytest.mark.parametrize("seed", range(tries(60)))
def test_json_is_closed_wherever_an_end_of_half_the_budget_is_known(seed: int) -> None:
    schema, instance = case(seed)
    separators = (",", ":") if seed % 2 else None
    text = json.dumps(instance, ensure_ascii=False, separators=separators)
    vocabulary = [byte_level, sentencepiece][seed % 3 == 0]()
    try:
        constrained(JsonSchema(schema), vocabulary=vocabulary)
    except GrammarError:
        pytest.skip("refused")
    assert not list(check(JsonSchema(schema), text, vocabulary, random.Random(seed)))


STRINGS = [({"format": name}, text) for name, text in FORMATS.items()]
STRINGS += [({"pattern": name}, text) for name, text in PATTERNS.items()]


@pytest.mark.parametrize(("kind", "text"), STRINGS, ids=lambda value: str(value)[:30])
def test_strings_of_a_form_are_closed_wherever_they_are_cut(
    kind: dict[str, str], text: str
) -> None:
    vocabulary = load().vocabulary
    schema = {"type": "array", "items": {"type": "string", **kind}, "minItems": 3}
    document = json.dumps([text] * 3, separators=(",", ":"))
    assert not list(check(JsonSchema(schema), document, vocabulary, random.Random(text)))
    if "pattern" in kind:
        bare = Regex(kind["pattern"].strip("^$"))
        assert not list(check(bare, text, vocabulary, random.Random(text)))


SQL = r"""
start: "SELECT " cols " FROM " NAME where? ";"
cols: col ("," " "? col)* | "*"
col: NAME ("." NAME)? | "COUNT(" NAME ")" | "(" sub ")"
sub: "SELECT " cols " FROM " NAME where?
where: " WHERE " cond (" " ("AND"|"OR") " " cond)*
cond: NAME " "? OP " "? value
value: NUMBER | STRING | NAME | "(" sub ")"
OP: "=" | "<" | ">" | "<>" | "LIKE"
NAME: /[a-z][a-z0-9_]{0,20}/
NUMBER: /[0-9]+(\.[0-9]+)?/
STRING: /'[^']*'/
"""

LOOSE_SQL = r"""
%ignore /[ \t\n]+/
start: stmt+
stmt: "SELECT" cols "FROM" NAME ("WHERE" cond ("AND" cond)*)? ("LIMIT" INT)? ";"
cols: "*" | expr ("," expr)*
expr: NAME | INT | "(" expr ("+"|"-"|"*") expr ")" | FUNC "(" cols ")"
cond: expr ("="|"<"|">") expr | "NOT" cond | "EXISTS" "(" stmt ")"
FUNC: "COUNT"|"SUM"|"MAX"
NAME: /[a-z_]+/
INT: /[0-9]+/
"""

PYTHON = r"""
start: "def " NAME "(" (NAME ("," NAME)*)? "):\n" line+
line: "    " (NAME " = " expr | "return " expr) "\n"
expr: NAME | NUM | expr " + " expr | NAME "(" expr ")"
NAME: /[a-z_]{3,}/
NUM: /-?[0-9]+/
"""

LARKS = [
    (SQL, "SELECT * FROM users;"),
    (SQL, "SELECT name, age FROM users WHERE age > 30 AND name LIKE 'a%';"),
    (SQL, "SELECT a.b, COUNT(id) FROM orders WHERE total = (SELECT x FROM y WHERE z < 10);"),
    (LOOSE_SQL, "SELECT COUNT(a), (b + 12) FROM orders WHERE NOT a = (b - 3) LIMIT 10;"),
    (PYTHON, "def foo(bar,baz):\n    qux = bar + 12\n    return len(qux)\n"),
]


@pytest.mark.parametrize(("grammar", "text"), LARKS, ids=lambda value: str(value)[:30])
def test_texts_of_other_grammars_are_closed_wherever_they_are_cut(grammar: str, text: str) -> None:
    for seed in range(3):
        draw = random.Random(seed)
        assert not list(check(Lark(grammar), text, load().vocabulary, draw))


def test_the_work_of_a_look_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    fill = GrammarFilter.fill

    def counted(self: GrammarFilter, row: Int32Words) -> bool:
        asked.append(1)
        return fill(self, row)

    monkeypatch.setattr(GrammarFilter, "fill", counted)
    search = EndSearch(constrained(Regex("[a-z]{900}[0-9]*#"), vocabulary=byte_level()))
    for _ in range(5):
        asked.clear()
        assert search.find(10) is None
        assert 100 < len(asked) < 2 * WORK + 500


def test_an_end_that_is_far_away_is_found_within_some_looks() -> None:
    vocabulary = byte_level()
    spec = Regex("([a-z]{250}[0-9]){4}#[ab]*")
    constraint = constrained(spec, vocabulary=vocabulary)
    search = EndSearch(constraint)
    for letter in "abcdefgh":
        run = search.find(2000)
        if run is not None:
            break
        feed(constraint, letter)
    assert run is not None
    assert constraint.validate(run) == len(run)
    assert not constraint.can_end()


def test_a_search_stays_in_step_where_the_text_may_end() -> None:
    vocabulary = byte_level()
    constraint = constrained(Regex(r"(a|b|\[c{3}\])*"), vocabulary=vocabulary)
    search = EndSearch(constraint)
    feed(constraint, "ab[")
    assert search.find(9) is not None
    constraint.rewind(0)
    assert search.find(9) == []
    for sign in "ba[":
        feed(constraint, sign)
        search.find(9)
    twin = EndSearch(feed(constrained(Regex(r"(a|b|\[c{3}\])*"), vocabulary=vocabulary), "ba["))
    twin.follow()
    assert search._bytes is not None and twin._bytes is not None
    assert search._bytes.fed_since(0) == twin._bytes.fed_since(0)
    assert search.find(9) == twin.find(9)


def test_a_way_may_have_to_begin_otherwise() -> None:
    vocabulary = byte_level()
    search = EndSearch(feed(constrained(Regex("a(b|c*d)"), vocabulary=vocabulary), "a"))
    run = search.find(9)
    assert run is not None and len(run) == 1
    other = search.find(9, without=frozenset(run))
    assert other is not None and other[0] != run[0]
    longer = vocabulary.token_of(b'{"')
    assert longer is not None
    search = EndSearch(constrained(Regex('\\{"\\}'), vocabulary=vocabulary))
    assert search.find(9) == [longer, *vocabulary.continue_with(b"}")]
    assert search.find(9, without={longer}) == [*map(vocabulary.token_of, (b"{", b'"', b"}"))]
    assert search.find(9, without={longer, *vocabulary.continue_with(b"{")}) is None


def test_rows_that_are_closed_compile_nothing_once_they_run() -> None:
    vocabulary = Vocabulary.of(byte_level().tokenizer)
    spec = JsonSchema({"type": "array", "items": {"type": "string", "minLength": 3}, "minItems": 2})
    constraint = constrained(spec, vocabulary=vocabulary)
    search = EndSearch(constraint)
    feed(constraint, '["ab')
    with pytest.MonkeyPatch.context() as patch:

        def never(self: GrammarEngine, grammar: object) -> None:
            raise AssertionError("compiled")

        patch.setattr(GrammarEngine, "_compile", never)
        run = search.find(30)
        assert run is not None
        assert re.fullmatch(r'.","...?"\]', vocabulary.decode(run))
        twin = constraint.fork()
        assert search.fork(twin).find(30) is not None


def test_special_tokens_are_ways_too() -> None:
    vocabulary = byte_level()
    call = next(t for t in vocabulary.added if vocabulary.piece(t) == b"</tool_call>")
    spec = Lark("start: TEXT </tool_call>\nTEXT: /(.|\\n)*/")
    constraint = feed(constrained(spec, vocabulary=vocabulary), "free text")
    assert EndSearch(constraint).find(5) == [call]
    twin = ByteVocabulary.beside(vocabulary)
    assert twin.spelled([call, *b"ab"]) == [call, *map(twin.token_of, (b"a", b"b"))]
    assert all(twin.token_of(bytes([byte])) is not None for byte in range(256))


def test_filters_of_other_kinds_are_walked_themselves() -> None:
    def no_x(tokens: object) -> list[Token]:
        return [token for token in range(256) if token != ord("x")]

    allow = Allow(no_x, can_end=lambda tokens: True)
    spec = AllOf(Regex("a[xy]b"), allow)
    constraint = feed(constrained(spec), "a")
    assert EndSearch(constraint).find(5) == [ord("y"), ord("b")]
    with pytest.raises(DeadEndError):
        feed(constrained(AllOf(Regex("ax"), allow)), "a").mask()
    assert EndSearch(feed(constrained(AllOf(Regex("ax"), allow)), "a")).find(5) is None
