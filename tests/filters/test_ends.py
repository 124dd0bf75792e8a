"""Whether a short end is found wherever there is one, checked against texts that are known."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from mlxgen.errors import OptionError
from mlxgen.filters import (
    After,
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
from mlxgen.tokens import Token, Vocabulary

from ..effort import table, tries
from .helpers import (
    Fixed,
    NativeToy,
    Toy,
    alphabet,
    byte_level,
    constrained,
    feed,
    sentencepiece,
    state,
)
from .test_tables import MAKE, is_valid, running, spelled, vocabulary_of


def find(constraint: Constraint, limit: int, **options: Any) -> list[Token] | None:
    return EndSearch(constraint).find(limit, **options)


def closed(constraint: Constraint, run: list[Token] | None) -> Constraint:
    """Feeds the run and checks that it ends validly with its last token, not before."""
    assert run is not None
    for token in run:
        assert not constraint.can_end()
        constraint.advance(token)
    assert constraint.can_end()
    return constraint


# ---- wherever a known text is cut ----------------------------------------------------------------


def ends_within(constraint: Constraint, limit: int) -> list[Token] | None:
    """As a generation does that looks at each token; half the budget is there to look."""
    search = EndSearch(constraint)
    looks = (search.find(limit) for _ in range(min(8, limit // 2)))
    return next((run for run in looks if run is not None), None)


def without_end(spec: Specification, text: str, vocabulary: Vocabulary, seed: str) -> Iterator[str]:
    """Places of a known text with twice its rest left, at which no end is found."""
    draw, tokens = random.Random(seed), vocabulary.continue_with(text.encode())
    if not tokens or len(tokens) > 400:
        return
    constraint = constrained(spec, vocabulary=vocabulary)
    places = {draw.randrange(len(tokens)) for _ in range(2 + tries(96))}
    for place, token in enumerate(tokens):
        if place in places and not constraint.can_end():
            run = ends_within(constraint, max(4, 2 * (len(tokens) - place)))
            if run is None:
                yield f"{vocabulary.decode(tokens[:place])!r} has no end in {spec!r}"
            else:
                closed(constraint.fork(), run)
        constraint.advance(token)


MISSED = tries(32) // 3  # of a few thousand places, as the search is bounded; by default none
# What is missing of these does not show in what may come next.
in_parts = pytest.mark.parametrize("part", range(4))
HIDDEN = re.compile(
    r'"pattern": "(?!\^)|minProperties|minContains|"multipleOf": (3|6|12|15|60|3000)\b'
)


@in_parts
def test_values_of_schemas_are_closed_wherever_they_are_cut(part: int) -> None:
    missed = list[str]()
    for case in table("schemas", part, 4):
        spec = JsonSchema(case["schema"])
        if HIDDEN.search(json.dumps(case["schema"])):
            continue
        for i, value in enumerate(case["values"]):
            vocabulary = [byte_level, sentencepiece, alphabet][i % 3]()
            if is_valid(case["schema"], value):
                missed += without_end(spec, spelled(value), vocabulary, f"{value}")
    assert len(missed) <= MISSED, missed


@in_parts
def test_texts_of_filters_are_closed_wherever_they_are_cut(part: int) -> None:
    missed = list[str]()
    for case in table("texts", part, 4):
        spec = MAKE[case["filter"]](case["given"])
        if isinstance(spec, LMFormatEnforcer):  # it is slow to ask, so less is asked
            continue
        for text in case["good"]:
            missed += without_end(spec, text, vocabulary_of(case), text)
    assert len(missed) <= MISSED, missed


STRINGS = [
    (case["schema"]["items"], case["values"][0][0])
    for case in table("schemas")
    if re.match(r'\{"type": "array", "items": \{"type": "string"', json.dumps(case["schema"]))
]
VALUES = ["alpha", "beta", 12, None, "delta wing", "alphabet", "a", [1, 2], {"a": 1}]
NAMES = ["id", "name", "created_at", "kind", "items", "left", "zip_code", "meta", "price", "notes"]


def pair(draw: random.Random, depth: int) -> tuple[Any, Any]:
    """A random schema, and a value that is valid against it."""
    kind = draw.randrange(9 if depth else 5)
    if kind == 0:
        low = draw.randint(-50, 500)
        return {"type": "integer", "minimum": low, "maximum": low + 99}, low + draw.randrange(100)
    if kind == 1:
        options = draw.sample(VALUES, draw.randint(1, 5))
        return {"enum": options}, draw.choice(options)
    if kind == 2:
        least = draw.randint(0, 40)
        text = "".join(draw.choice('abc xyzé"\\') for _ in range(least + draw.randint(0, 9)))
        return {"type": "string", "minLength": least, "maxLength": least + 9}, text
    if kind == 3:
        return draw.choice(STRINGS)
    if kind == 4:
        name, value = draw.choice([("boolean", True), ("null", None), ("number", -2.25)])
        return {"type": name}, value
    inner = [pair(draw, depth - 1) for _ in range(draw.randint(1, 4))]
    schemas, values = [each for each, _ in inner], [each for _, each in inner]
    if kind == 5:
        count = draw.randint(1, 3)
        return {"type": "array", "items": schemas[0], "minItems": count}, values[:1] * count
    if kind == 6:
        return {"type": "array", "prefixItems": schemas, "minItems": len(inner)}, values
    if kind == 7:
        return {"anyOf": schemas}, draw.choice(values)
    names = draw.sample(NAMES, len(inner))
    given: dict[str, Any] = {
        "properties": dict(zip(names, schemas, strict=True)),
        "required": [name for name in names if draw.random() < 0.5],
        **draw.choice([{}, {"additionalProperties": False}]),
    }
    kept = [name for name in names if name in given["required"] or draw.random() < 0.5]
    return {"type": "object", **given}, {name: values[names.index(name)] for name in kept}


@pytest.mark.parametrize("seed", range(4))
def test_values_of_random_schemas_are_closed_wherever_they_are_cut(seed: int) -> None:
    draw, missed = random.Random(seed), list[str]()
    for i in range(tries(192)):
        schema, value = pair(draw, 3)
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":") if i % 2 else None)
        vocabulary = [byte_level, sentencepiece][i % 3 == 0]()
        missed += without_end(JsonSchema(schema), text, vocabulary, f"{seed} {i}")
    assert len(missed) <= MISSED, missed


# ---- how short it is -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["letters", pytest.param("bytes", marks=pytest.mark.slow)])
def test_the_way_is_as_short_as_the_shortest_text_if_there_is_one(kind: str) -> None:
    """``end`` is a shortest text, which begins ``without`` some tokens, in as many tokens as the
    tokenizer gives it, or up to ``limit``."""
    for case in table("ends"):
        constraint = feed(running({"vocabulary": kind, **case}), case["text"])
        vocabulary, end = constraint.vocabulary, case["end"]
        without = {vocabulary.token_of(text.encode()) for text in case.get("without", ())}
        if end is None:
            assert find(constraint, case["limit"], without=without) is None, case
            continue
        limit = case.get("limit", len(vocabulary.continue_with(end.encode())))
        run = find(constraint, limit, without=without)
        assert run is not None and len(run) <= limit and without.isdisjoint(run[:1]), case
        for taken, token in enumerate(run, 1):  # and it grows shorter with each token
            constraint.advance(token)
            assert find(constraint, limit - taken) is not None, case
        assert constraint.can_end(), case
    with pytest.raises(OptionError, match="limit"):
        find(constraint, -1)


@pytest.mark.parametrize("make", [LMFormatEnforcer.json_schema, OutlinesCore.json_schema])
def test_other_engines_are_closed_as_well(make: Any) -> None:
    properties = {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["a", "b"]}
    for start in ("", '{"a"', '{"a":[1', '{"a":[1],"b":"x'):
        constraint = feed(constrained(make(schema), vocabulary=byte_level()), start)
        closed(constraint, find(constraint, 40))


@pytest.mark.parametrize("start", [[], [97], [262], [97, 262, 91]])
def test_a_token_that_is_named_by_its_id_is_that_token(start: list[int]) -> None:
    for spec in (After(262, Choice(["[]"]), required=True), Lark('start: "a"? <[262]> "[]"')):
        constraint = constrained(spec, vocabulary=byte_level())
        for token in start:
            constraint.advance(token)
        closed(constraint, find(constraint, 5))


# ---- what it costs, and what it leaves alone -----------------------------------------------------


class Uncopyable(Toy):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no")

    def can_end(self) -> bool:
        return len(self.tokens) == 3


def test_a_search_does_not_change_the_constraint() -> None:
    for filters in ([Regex("a[b-z]*!")], [Toy(), Fixed([3])], [Uncopyable()]):
        constraint = constrained(*filters)
        before = state(constraint)
        find(constraint, 10)
        assert state(constraint) == before
    run = find(constrained(Uncopyable()), 5)  # it is walked forth and back
    assert run is not None and len(run) == 3


class Wandering(NativeToy):
    def can_end(self) -> bool:
        return False


@pytest.mark.parametrize("work", [1, 5, 50, 300, None])
def test_the_work_is_bounded(work: int | None) -> None:
    options: dict[str, Any] = {} if work is None else {"work": work}
    most = work or 2500
    toy = Wandering()
    search = EndSearch(constrained(toy))
    for _ in range(3):
        toy.log["advance"] = 0
        assert search.find(50, **options) is None
        assert most / 9 < toy.log["advance"] <= 1.5 * most + 30  # a place is looked at as a whole


def test_an_end_that_is_far_away_is_found_within_some_looks() -> None:
    constraint = constrained(Regex("([a-z]{250}[0-9]){4}#[ab]*"), vocabulary=byte_level())
    search = EndSearch(constraint)
    for letter in "abcdefgh":
        if (run := search.find(2000)) is not None:
            break
        feed(constraint, letter)
    closed(constraint, run)


def test_a_search_stays_in_step_with_rewinds_and_forks() -> None:
    vocabulary = byte_level()
    spec = JsonSchema({"type": "array", "items": {"type": "string", "minLength": 3}, "minItems": 2})
    constraint = constrained(spec, vocabulary=vocabulary)
    search = EndSearch(constraint)
    for kept, more, rest in ((0, '["ab', r'.","...?"\]'), (2, 'xyz","ab', r'."\]')):
        constraint.rewind(kept)
        feed(constraint, more)
        run = search.find(30)
        assert run is not None and re.fullmatch(rest, vocabulary.decode(run))
        twin = constraint.fork()
        closed(twin, search.fork(twin).find(30))
