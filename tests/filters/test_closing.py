from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import DeadEndError, FilterError, OptionError
from mlxgen.filters import (
    After,
    AllOf,
    Allow,
    Choice,
    Constraint,
    EndSearch,
    JsonSchema,
    Lark,
    LMFormatEnforcer,
    OutlinesCore,
    Regex,
    Specification,
)

from ..effort import tries
from .helpers import (
    Fixed,
    NativeToy,
    Toy,
    alphabet,
    byte_level,
    constrained,
    feed,
    ordinary,
    sentencepiece,
    state,
)


def shortest_end(constraint: Constraint, limit: int, **options: Any) -> list[int] | None:
    return EndSearch(constraint).find(limit, **options)


def brute_force(constraint: Constraint, limit: int) -> int | None:
    """The length of a shortest run by the tokens of the masks; None beyond ``limit``."""
    frontier = [constraint]
    for length in range(limit + 1):
        if any(place.can_end() for place in frontier):
            return length
        beyond = []
        for place in frontier:
            try:
                tokens = ordinary(place)
            except DeadEndError:
                continue
            for token in tokens:
                twin = place.fork()
                twin.advance(token)
                beyond.append(twin)
        frontier = beyond
        assert len(frontier) < 5000
    return None


def closed(constraint: Constraint, run: list[int]) -> Constraint:
    """Feeds the run and checks that it ends validly with its last token, not before."""
    for token in run:
        assert not constraint.can_end()
        constraint.advance(token)
    assert constraint.can_end()
    return constraint


SMALL = [
    "a*b",
    "(ab)*c",
    "a{5}b",
    "x(a[ab]{3}|b[ab]{6})y",
    "(a|b)(c|d){2}(e|fg)",
    "((x|y)z){3}",
    "a(b(c(d|e)|f)|g)h",
    "(aa|b){4}",
    "the (name|true|null)[.!]",
    "(a{9}|bb)c",
]


@pytest.mark.parametrize("pattern", SMALL)
def test_on_small_grammars_the_way_is_near_the_shortest(pattern: str) -> None:
    start = constrained(Regex(pattern))
    places = [start]
    for _ in range(2):  # and from places on the way
        places += [step(place, token) for place in places for token in sorted(ordinary(place))[:3]]
    for place in places:
        best = brute_force(place, 12)
        assert best is not None
        run = shortest_end(place, 2 * best)  # fewest bytes, not tokens
        assert run is not None and len(run) <= 2 * best
        closed(place.fork(), run)
        if best:
            assert shortest_end(place, best - 1) is None


def step(place: Constraint, token: int) -> Constraint:
    twin = place.fork()
    twin.advance(token)
    return twin


def test_where_the_text_may_end_the_way_is_empty() -> None:
    assert shortest_end(constrained(Regex("a*")), 0) == []
    assert shortest_end(constrained(), 0) == []
    assert shortest_end(constrained(Regex("a")), 0) is None
    with pytest.raises(OptionError, match="limit"):
        shortest_end(constrained(Regex("a")), -1)


def test_if_no_end_fits_or_none_exists_there_is_no_way() -> None:
    assert shortest_end(constrained(Regex("[ab]{30}")), 5) is None
    assert shortest_end(constrained(Fixed([1, 2])), 20) is None
    assert (
        shortest_end(constrained(Allow(lambda tokens: [1] if len(tokens) < 3 else [])), 9) is None
    )


def test_a_search_does_not_change_the_constraint() -> None:
    for constraint in (feed(constrained(Regex("a[b-z]*!")), "ab"), constrained(Toy(), Fixed([3]))):
        before = state(constraint)
        shortest_end(constraint, 10)
        assert state(constraint) == before


class Uncopyable(Toy):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no")

    def can_end(self) -> bool:
        return len(self.tokens) == 3


def test_filters_that_cannot_be_copied_are_walked_forth_and_back() -> None:
    constraint = constrained(Uncopyable())
    run = shortest_end(constraint, 5)
    assert run is not None and len(run) == 3
    assert len(constraint) == 0 and ordinary(constraint) == {1, 2, 3, 5, 6, 7, 9, 10, 11}


class Wandering(NativeToy):
    """Never ends."""

    def can_end(self) -> bool:
        return False


@pytest.mark.parametrize("work", [1, 5, 50, 300])
def test_the_work_is_bounded(work: int) -> None:
    toy = Wandering()
    assert shortest_end(constrained(toy), 50, work=work) is None
    assert toy.log["advance"] <= 1.5 * work + 30  # what there is at one place is looked at together


# ---- JSON ----------------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 12},
        "kind": {"enum": ["alpha", "beta", 12]},
        "pair": {
            "type": "object",
            "properties": {
                "left": {"type": "number"},
                "right": {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
            },
            "required": ["left", "right"],
            "additionalProperties": False,
        },
        "notes": {"type": "array", "items": {"type": "string"}},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
    },
    "required": ["name", "kind", "pair"],
    "additionalProperties": False,
}

DOCUMENTS = st.fixed_dictionaries(
    {
        "name": st.text('abé"\\', min_size=3, max_size=12),
        "kind": st.sampled_from(["alpha", "beta", 12]),
        "pair": st.fixed_dictionaries(
            {
                "left": st.integers(-999, 999) | st.sampled_from([0.5, 1e20, -2.25]),
                "right": st.lists(st.booleans(), min_size=2, max_size=4),
            }
        ),
    },
    optional={
        "notes": st.lists(st.text('xy }]",', max_size=4), max_size=3),
        "zip": st.text("0123456789", min_size=5, max_size=5),
    },
)

SHORTEST = '{"name":"   ","kind":12,"pair":{"left":0,"right":[true,true]}}'


def ordered(value: Any, schema: Any) -> Any:
    """With properties in the schema's order, which is the only one allowed."""
    if not isinstance(value, dict):
        return value
    properties = schema["properties"]
    return {name: ordered(value[name], properties[name]) for name in properties if name in value}


@settings(max_examples=tries(60))
@given(DOCUMENTS, st.data())
def test_json_is_closed_validly_wherever_it_is_cut(document: Any, data: st.DataObject) -> None:
    vocabulary = data.draw(st.sampled_from([alphabet(), byte_level(), sentencepiece()]))
    indent = data.draw(st.sampled_from([None, 2]))
    document = ordered(document, SCHEMA)
    text = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    cut = data.draw(st.integers(0, len(text)))
    constraint = feed(constrained(JsonSchema(SCHEMA), vocabulary=vocabulary), text[:cut])
    run = shortest_end(constraint, len(SHORTEST) + 6)
    assert run is not None, text[:cut]
    closed(constraint, run)
    whole = text[:cut] + b"".join(map(vocabulary.piece, run))
    jsonschema.validate(json.loads(whole), SCHEMA)
    assert len(run) <= len(SHORTEST) + 6
    if cut == len(text):
        assert run == []


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("", SHORTEST),
        ('{"name": "Bob"', ',"kind":12,"pair":{"left":0,"right":[true,true]}}'),
        ('{"name": "Bob', '","kind":12,"pair":{"left":0,"right":[true,true]}}'),
        ('{"name":"Bob","kind":1', '2,"pair":{"left":0,"right":[true,true]}}'),
        ('{"name":"Bob","kind":"al', 'pha","pair":{"left":0,"right":[true,true]}}'),
        ('{"name":"Bob","kind":12,"pair":{"left":-', '0,"right":[true,true]}}'),
        ('{"name":"Bob","kind":12,"pair":{"left":1e', '0,"right":[true,true]}}'),
        ('{"name":"Bob","kind":12,"pair":{"left":1,"right":[tr', "ue,true]}}"),
        ('{"name":"Bob","kind":12,"pair":{"left":1,"right":[true,true,', "true]}}"),
        ('{"name":"Bob","kind":12,"pair":{"left":1,"right":[true,true]', "}}"),
        ('{"name":"Bob","kind":12,"pair":{"left":1,"right":[true,true]},"notes":["a\\', '""]}'),
        ('{"name":"Bob","kind":12,"pair":{"left":1,"right":[true,true]},"zip":"12', '000"}'),
        ('{"name":"Bob","kind":12,"pair":{"left":1,"right":[true,true]},"', 'zip":"00000"}'),
    ],
)
def test_the_way_is_as_short_as_the_shortest_text(start: str, end: str) -> None:
    constraint = feed(constrained(JsonSchema(SCHEMA), vocabulary=alphabet()), start)
    limit = len(alphabet().continue_with(end.encode()))
    run = shortest_end(constraint, limit)
    assert run is not None and len(run) <= limit


def test_a_long_least_length_is_filled_with_long_tokens() -> None:
    spec = JsonSchema({"type": "string", "minLength": 40})
    run = shortest_end(feed(constrained(spec), '"'), 14)  # tokens of up to four spaces
    assert run is not None and len(run) <= 14


def test_any_json_ends_at_once() -> None:
    for start, most in (("", 1), ("[", 1), ("[[", 2), ('{"a', 4), ('{"a":[', 2), ('["', 2)):
        run = shortest_end(feed(constrained(JsonSchema(True)), start), most)
        assert run is not None and len(run) <= most, (start, run)


@pytest.mark.parametrize(
    "make", [LMFormatEnforcer.json_schema, OutlinesCore.json_schema], ids=["lmfe", "outlines"]
)
def test_other_engines_are_closed_as_well(make: Any) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "integer"}},
            "b": {"type": "string"},
        },
        "required": ["a", "b"],
    }
    for start in ("", '{"a"', '{"a":[1', '{"a":[1],"b":"x'):
        constraint = feed(constrained(make(schema), vocabulary=byte_level()), start)
        run = shortest_end(constraint, 40)
        assert run is not None
        closed(constraint, run)


MIXED: list[tuple[Specification, str, int]] = [
    (AllOf(JsonSchema({"type": "string"}), Regex('"[a-z]{3,}"')), '"a', 3),
    (After("</think>", JsonSchema({"type": "integer"}), required=True), "hm, <", 8),
    (After("=", Choice(["yes", "no"])), "x=", 2),
    (Lark('start: "<" text ">"\ntext: /[a-z ]{4,9}/'), "<", 5),
]


@pytest.mark.parametrize(("spec", "start", "most"), MIXED, ids=lambda value: repr(value)[:30])
def test_compositions_and_grammars_are_closed_too(
    spec: Specification, start: str, most: int
) -> None:
    constraint = feed(constrained(spec), start)
    run = shortest_end(constraint, most)
    assert run is not None and len(run) <= most
    closed(constraint, run)


def test_a_way_that_is_short_enough_is_taken_without_looking_further() -> None:
    constraint = feed(constrained(JsonSchema(SCHEMA)), '{"name":"Bob')
    best = shortest_end(constraint, len(SHORTEST) - len('{"name":"   '))
    quick = shortest_end(constraint, 100)
    assert best is not None and quick is not None
    assert len(best) <= len(quick) <= 2 * len(best)
    closed(constraint, quick)


def test_the_way_grows_shorter_token_by_token() -> None:
    constraint = constrained(JsonSchema(SCHEMA), vocabulary=byte_level())
    run = shortest_end(constraint, 100)
    assert run is not None
    for taken, token in enumerate(run, 1):
        constraint.advance(token)
        rest = shortest_end(constraint, len(run) - taken)
        assert rest is not None
    with pytest.raises(FilterError):
        constraint.advance(0)
