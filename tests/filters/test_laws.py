"""Laws 1 to 4 for the filters of ``tests/data/filters.jsonl``, against some built from scratch."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from mlxgen.errors import DeadEndError, FilterError
from mlxgen.filters import Constraint
from mlxgen.tokens import Vocabulary

from ..effort import table, tries
from .helpers import byte_level, constrained, ordinary, sentencepiece, state
from .test_tables import MAKE

KINDS = [byte_level(), sentencepiece()]


class Walk:
    """A constraint and the history that it should have."""

    def __init__(self, written: str, vocabulary: Vocabulary) -> None:
        self.written = written
        self.vocabulary = vocabulary
        triggers = {260, vocabulary.token_of(b"so"), *vocabulary.continue_with(b"so")}
        self.likely = {token for token in triggers if token is not None}  # which change most
        self.constraint = self.fresh([])
        self.history: list[list[int]] = []

    def fresh(self, history: list[list[int]]) -> Constraint:
        made = MAKE["python"](self.written)
        filters = made if isinstance(made, tuple) else (made,)
        width = self.vocabulary.size + 3
        constraint = constrained(*filters, vocabulary=self.vocabulary, vocab_size=width)
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


def ahead(constraint: Constraint, draw: random.Random) -> list[int]:
    """Some tokens that may come next, signs rather than words."""
    run: list[int] = []
    twin = constraint.fork()
    for _ in range(draw.randint(1, 8)):
        if not (tokens := choices(twin)):
            break
        signs = [t for t in tokens if not twin.vocabulary.piece(t).isalnum()]
        run.append(draw.choice(signs if signs and draw.random() < 0.6 else tokens))
        twin.advance(run[-1])
    return run


@pytest.mark.parametrize("part", range(4))
def test_any_history_equals_a_constraint_built_from_scratch(part: int) -> None:
    for case in table("filters", part, 4):
        kinds = [byte_level()] if case.get("vocabulary") == "bytes" else KINDS
        for seed, vocabulary in product(range(max(16, tries(128))), kinds):
            walked(case, vocabulary, random.Random(seed))


def walked(case: Any, vocabulary: Vocabulary, draw: random.Random) -> None:
    """A ``masked`` filter is never fed without a mask."""
    walk = Walk(case["given"], vocabulary)
    forks: list[tuple[Constraint, Any]] = []
    for _ in range(draw.randint(4, 14)):
        constraint = walk.constraint
        steps = ["go", "go", "go", "ahead", "forced", "as", "bad", "back", "fork"]
        step = draw.choice(steps)
        if step == "go" and (tokens := choices(constraint)):
            likely = sorted(walk.likely.intersection(tokens))
            token = draw.choice(likely if likely and draw.random() < 0.5 else tokens)
            constraint.advance(token)
            walk.history.append([token])
        elif step == "ahead" and "masked" not in case:  # without masks on the way
            for token in ahead(constraint, draw):
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
        if step != "back" or draw.random() < 0.5:
            walk.check()
    for fork, before in forks:
        assert seen(fork) == before
