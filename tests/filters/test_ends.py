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
in_eighths = pytest.mark.parametrize("part", range(8))
HIDDEN = re.compile(
    r'"pattern": "(?!\^)|minProperties|minContains|"multipleOf": (3|6|12|15|60|3000)\b'
)


@in_eighths
def test_values_of_schemas_are_closed_wherever_they_are_cut(part: int) -> None:
    missed = list[str]()
    for case in table("schemas", part, 8):
        spec = JsonSchema(case["schema"])
        if HIDDEN.search(json.dumps(case["schema"])):
            continue
        for i, value in enumerate(case["values"]):
            vocabulary = [byte_level, sentencepiece, alphabet][i % 3]()
            if is_valid(case["schema"], value):
                missed += without_end(spec, spelled(value), vocabulary, f"{value}")
    assert len(missed) <= MISSED, missed


@in_eighths
def test_texts_of_filters_are_closed_wherever_they_are_cut(part: int) -> None:
    missed = list[str]()
    for case in table("texts", part, 8):
        spec = MAKE[case["filter"]](case["given"])
        if isinstance(spec, LMFormatEnforcer):  # it is slow to ask, so less is asked
            continue
        for text in case["good"]:
            missed += without_end(spec, text, vocabulary_of(case), text)
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
