"""Laws 1 to 4 for every filter there is, against a constraint that is built from scratch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from mlxgen.errors import DeadEndError, FilterError
from mlxgen.filters import (
    After,
    AllOf,
    Allow,
    AnyOf,
    Checked,
    Choice,
    Constraint,
    FirstToken,
    JsonObject,
    JsonSchema,
    Lark,
    LMFormatEnforcer,
    OutlinesCore,
    Regex,
    Replay,
    Specification,
    Substring,
)
from mlxgen.tokens import Vocabulary

from ..effort import tries
from .helpers import (
    CopyableToy,
    Fixed,
    NativeToy,
    Toy,
    byte_level,
    constrained,
    ordinary,
    sentencepiece,
    state,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "the": {"type": "string", "maxLength": 6},
        "so": {"type": "array", "items": {"enum": ["sad", "abc", 12]}, "maxItems": 3},
    },
    "required": ["the"],
    "additionalProperties": False,
}

FILTERS: dict[str, Callable[[], Any]] = {
    "json schema": lambda: JsonSchema(SCHEMA),
    "compact json": lambda: JsonSchema(SCHEMA, whitespace=None),
    "json object": lambda: JsonObject(),
    "regex": lambda: Regex("(the|so)( [a-d]{1,3})*[.!]"),
    "lark": lambda: Lark('start: head TAIL?\nhead: "so" | "the " head\nTAIL: /[0-9]+/'),
    "lark that replays": lambda: Lark('start: text "."\ntext[max_tokens=99]: /[a-e ]+/'),
    "lark that names tokens": lambda: Lark(
        'start: <[262]> "so" (TEXT <[303]> "[so so]" <[304]>)* <[97]>\nTEXT: /[a-d]{2,3}/'
    ),
    "choice": lambda: Choice(["the thing", "the other", "so", "so sad"]),
    "substring": lambda: Substring("the sad thing is so sad", by="chars"),
    "all of": lambda: AllOf(Regex("[a-h]+"), Regex(".*e.*"), Allow(lambda tokens: None)),
    "after text": lambda: After("so", Regex("[abc ]{0,5}"), required=True),
    "all of after text": lambda: After("so", AllOf(Regex("[abc ]{0,5}"), Allow(lambda t: None))),
    "after a token": lambda: After(260, Choice(["abc", "de"])),
    "callback": lambda: Allow(lambda tokens: [65 + sum(tokens) % 5, 70, *byte_level().eos]),
    "checked": lambda: AllOf(Checked(lambda piece, before: None, at="o"), Regex("(so )+[.]")),
    "lm-format-enforcer": lambda: LMFormatEnforcer.json_schema(SCHEMA),
    "lm-format-enforcer regex": lambda: LMFormatEnforcer.regex("(the|so)( [a-d]{1,3})*[.!]"),
    "outlines-core": lambda: OutlinesCore("(the|so)( [a-d]{1,3})*[.!]"),
    "native toy": NativeToy,
    "copyable toy": CopyableToy,
    "forward-only toy": Toy,
    "toys together": lambda: [Toy(), NativeToy(), Fixed([1, 2, 3, 6, 9]), CopyableToy()],
    "replayed factory": lambda: Replay(Toy, every=3),
    "replayed copies": lambda: Replay(CopyableToy(), every=2),
    "any of": lambda: AnyOf((Regex("a*b"), Regex("(ab)*c"), Choice(["aab", "x"]))),
    "first token": lambda: FirstToken(
        Regex("[ab]*"), 260, After("so", Choice(["ab", "b"]), required=True)
    ),
}


class Walk:
    """A constraint and the history that it should have."""

    def __init__(self, make: Callable[[], Any], vocabulary: Vocabulary) -> None:
        self.make = make
        self.vocabulary = vocabulary
        triggers = {260, vocabulary.token_of(b"so"), *vocabulary.continue_with(b"so")}
        self.likely = {token for token in triggers if token is not None}  # which change most
        self.constraint = self.fresh([])
        self.history: list[list[int]] = []

    def fresh(self, history: list[list[int]]) -> Constraint:
        made = self.make()
        filters = made if isinstance(made, list) else [made]
        constraint = Constraint(filters, self.vocabulary, self.vocabulary.size + 3)
        for fed in history:
            constraint.advance(*fed)
        return constraint

    def check(self) -> None:
        assert seen(self.constraint) == seen(self.fresh(self.history))


def seen(constraint: Constraint) -> Any:
    try:
        return state(constraint)
    except DeadEndError:
        return "dead end"


def choices(constraint: Constraint) -> list[int]:
    try:
        return sorted(ordinary(constraint))
    except DeadEndError:
        return []


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
@pytest.mark.parametrize("name", FILTERS)
def test_any_history_equals_a_constraint_built_from_scratch(name: str, kind: str) -> None:
    for seed in range(tries(128)):
        walked(name, byte_level() if kind == "bytes" else sentencepiece(), random.Random(seed))


def walked(name: str, vocabulary: Vocabulary, draw: random.Random) -> None:
    walk = Walk(FILTERS[name], vocabulary)
    forks: list[tuple[Constraint, Any]] = []
    for _ in range(draw.randint(4, 14)):
        constraint = walk.constraint
        step = draw.choice(["go", "go", "go", "forced", "as", "bad", "back", "fork"])
        if step == "go" and (tokens := choices(constraint)):
            likely = sorted(walk.likely.intersection(tokens))
            token = draw.choice(likely if likely and draw.random() < 0.5 else tokens)
            constraint.advance(token)
            walk.history.append([token])
        elif step == "forced" and choices(constraint) and (run := constraint.forced()):
            assert constraint.validate(run) == len(run)
            for token in run:
                assert not constraint.can_end()
                constraint.advance(token)
                walk.history.append([token])
        elif step == "as":
            run = draw.choices(choices(constraint) or [1], k=draw.randint(0, 3))
            taken = constraint.validate(run)
            if taken < len(run):
                with pytest.raises(FilterError):
                    constraint.advance(*run)
            constraint.advance(*run[:taken])
            walk.history.append(run[:taken])
        elif step == "bad":
            token = draw.randint(0, vocabulary.size + 2)
            if not constraint.validate([token]):
                with pytest.raises(FilterError):
                    constraint.advance(token)
        elif step == "back":
            to = draw.randint(0, len(walk.history) + 2)
            constraint.rewind(to)
            del walk.history[to:]
        elif step == "fork":
            twin = constraint.fork()
            if draw.random() < 0.5:
                walk.constraint, twin = twin, constraint
            forks.append((twin, seen(twin)))
        walk.check()
    for fork, before in forks:
        assert seen(fork) == before


SQL = r"""
start: "SELECT " cols " FROM " NAME (" WHERE " NAME "=" NUMBER)? ";"
cols: col ("," col)* | "*"
col: NAME ("." NAME)? | "(" start ")"
NAME: /[a-z][a-z0-9]*/
NUMBER: /[0-9]+/
"""


@pytest.mark.parametrize("name", ["sql", "json"])
@pytest.mark.parametrize("seed", range(tries(300)))
def test_going_on_without_masks_after_a_rewind_equals_a_constraint_built_from_scratch(
    name: str, seed: int
) -> None:
    draw = random.Random(seed)
    spec: Specification = Lark(SQL) if name == "sql" else JsonSchema(True)
    constraint = constrained(spec, vocabulary=byte_level())

    def ahead(count: int) -> list[int]:
        run: list[int] = []
        twin = constraint.fork()
        while len(run) < count and (tokens := choices(twin)):
            marks = [t for t in tokens if not byte_level().piece(t).isalnum()]
            run.append(draw.choice(marks if marks and draw.random() < 0.6 else tokens))
            twin.advance(run[-1])
        return run

    history: list[int] = []
    for _ in range(4):
        for token in ahead(draw.randint(1, 14)):
            constraint.advance(token)
            history.append(token)
            constraint.mask()
        del history[draw.randint(0, len(history)) :]
        constraint.rewind(len(history))
        for token in ahead(draw.randint(1, 8)):
            constraint.advance(token)
            history.append(token)
        fresh = constrained(spec, vocabulary=byte_level())
        for token in history:
            fresh.advance(token)
        assert state(constraint) == state(fresh)
