from __future__ import annotations

from collections.abc import Callable

import pytest

from mlxgen.errors import DeadEndError
from mlxgen.filters import (
    After,
    AllOf,
    Allow,
    Choice,
    Constraint,
    JsonSchema,
    Lark,
    Regex,
    Specification,
    fill_masks,
)
from mlxgen.tokens import Vocabulary

from .helpers import Toy, byte_level, constrained, feed, sentencepiece, state

SPECS: list[tuple[Specification, str]] = [
    (JsonSchema({"type": "object"}), '{"a'),
    (JsonSchema({"type": "object"}), ""),
    (Regex("a*"), "aa"),
    (Choice(["the thing", "so"]), "the"),
    (AllOf(Regex("[a-f]*"), Regex("[d-z]*")), "d"),
    (After("ab", Regex("c+")), "ab"),
    (After("ab", Regex("c+")), "a"),
    (Allow(lambda tokens: [1, 2]), ""),
    (Lark('start: "a" "b"'), "ab"),
]


@pytest.mark.parametrize("threads", [None, 1, 2])
@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_masks_are_what_they_would_have_been_one_by_one(
    make: Callable[[], Vocabulary], threads: int | None
) -> None:
    vocabulary = make()

    def rows() -> list[Constraint]:
        return [
            feed(constrained(spec, vocabulary=vocabulary, vocab_size=width), text)
            for width in (vocabulary.size, vocabulary.size + 40, vocabulary.size - 5)
            for spec, text in SPECS
        ]

    together, alone = rows(), rows()
    fill_masks(together, threads=threads)
    assert all(constraint.outlook for constraint in together)
    assert list(map(state, together)) == list(map(state, alone))
    for constraint in (*together, *alone):
        constraint.rewind(max(0, len(constraint) - 1))
    assert list(map(state, together)) == list(map(state, alone))


def test_masks_that_are_known_already_are_left_alone() -> None:
    constraint = constrained(Regex("a"))
    mask = constraint.mask()
    fill_masks([constraint, constrained(Regex("b"))])
    assert constraint.mask() is mask
    fill_masks([])


def test_one_rows_error_is_its_own() -> None:
    dead = constrained(Allow(lambda tokens: []))
    stuck = constrained(Lark('start: "a" <[256]> "b"'), Regex("b"))
    good = [constrained(Regex("a+")), constrained(Toy())]
    fill_masks([dead, stuck, *good])
    assert all(constraint.outlook for constraint in good)
    for constraint in (dead, stuck):
        with pytest.raises(DeadEndError):
            constraint.mask()


def test_rows_that_share_a_specification_are_filled_together() -> None:
    spec = JsonSchema({"type": "object", "properties": {"the thing": {"type": "string"}}})
    rows = [constrained(spec, vocabulary=byte_level()) for _ in range(8)]
    for byte in b'{"the thing":"so"}':
        fill_masks(rows, threads=2)
        assert len({row.mask().tobytes() for row in rows}) == 1  # type: ignore[union-attr]
        for row in rows:
            row.advance(byte_level().token_of(bytes([byte])) or 0)
    assert all(row.ended() for row in rows)
