"""What tests of filters share: vocabularies, toy filters, and questions asked in one line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from mlxgen.errors import FilterError
from mlxgen.filters import (
    Constraint,
    Filter,
    Int32Words,
    Specification,
    no_tokens,
    tokens_of,
    words_of,
)
from mlxgen.tokens import Token, Vocabulary

from ..fakes import (
    alphabet_tokenizer,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
    wordpiece_tokenizer,
)

EXTRA = ("name", "ab", "abc", '":', '"}', "], ", "true", "null", "  ", "    ", "the ", "<x>")
"""Tokens of the alphabet vocabulary beyond single bytes."""


@cache
def alphabet() -> Vocabulary:
    """Token ``n`` is byte ``n``, and a few longer tokens; the end token comes last."""
    return Vocabulary.of(alphabet_tokenizer(EXTRA))


@cache
def byte_level() -> Vocabulary:
    return Vocabulary.of(byte_level_tokenizer())


@cache
def sentencepiece() -> Vocabulary:
    return Vocabulary.of(sentencepiece_tokenizer())


@cache
def wordpiece() -> Vocabulary:
    return Vocabulary.of(wordpiece_tokenizer())


def constrained(
    *filters: Specification | Filter,
    vocabulary: Vocabulary | None = None,
    vocab_size: int | None = None,
    **options: Any,
) -> Constraint:
    vocabulary = vocabulary or alphabet()
    return Constraint(list(filters), vocabulary, vocab_size or vocabulary.size, **options)


def feed(constraint: Constraint, text: str | bytes) -> Constraint:
    """Byte by byte, so that how the text falls into tokens plays no part."""
    data = text.encode() if isinstance(text, str) else text
    for byte in data:
        token = constraint.vocabulary.token_of(bytes([byte]))
        assert token is not None
        constraint.advance(token)
    return constraint


def takes(constraint: Constraint, text: str | bytes) -> bool:
    """Whether a text may come next, byte by byte."""
    data = text.encode() if isinstance(text, str) else text
    tokens = [constraint.vocabulary.token_of(bytes([byte])) for byte in data]
    return constraint.validate([t for t in tokens if t is not None]) == len(data)


def accepts(spec: Specification, text: str | bytes, vocabulary: Vocabulary | None = None) -> bool:
    """Whether a text is one that a specification allows as a whole."""
    try:
        return feed(constrained(spec, vocabulary=vocabulary), text).can_end()
    except FilterError:
        return False


def stands(spec: Specification, text: str | bytes, vocabulary: Vocabulary | None = None) -> bool:
    """Whether a text is allowed, and is not objected to once it is complete."""
    constraint = constrained(spec, vocabulary=vocabulary)
    try:
        return feed(constraint, text).can_end() and constraint.objection() is None
    except FilterError:
        return False


def allowed(constraint: Constraint) -> set[Token]:
    """The tokens that the mask allows, end tokens included."""
    mask = constraint.mask()
    if mask is None:
        return set(range(constraint.vocab_size))
    assert len(mask) == (constraint.vocab_size + 31) // 32
    return set(tokens_of(mask).tolist())


def ordinary(constraint: Constraint) -> set[Token]:
    return allowed(constraint) - constraint.vocabulary.eos


def pieces(constraint: Constraint) -> set[bytes]:
    """The bytes of the ordinary tokens that the mask allows."""
    return {constraint.vocabulary.piece(token) for token in ordinary(constraint)}


def state(constraint: Constraint) -> tuple[Any, ...]:
    """Everything that can be asked of a constraint."""
    mask = constraint.mask()
    return (
        len(constraint),
        None if mask is None else mask.tobytes(),
        constraint.can_end(),
        constraint.ended(),
        tuple(constraint.forced()),
        constraint.unchecked(),
    )


class Toy:
    """A forward-only filter over a few tokens whose rules depend on all it was fed.

    After tokens with the sum s, token t is allowed unless (s + t) % 4 == 0; the text may end
    where s is even. ``advances`` and ``resets`` count, over all copies made from one.
    """

    SIZE = 12

    def __init__(self, log: dict[str, int] | None = None) -> None:
        self.tokens: list[Token] = []
        self.log = log if log is not None else {"advance": 0, "reset": 0, "fork": 0, "rewind": 0}

    def _allows(self, token: Token) -> bool:
        return 0 <= token < self.SIZE and (sum(self.tokens) + token) % 4 != 0

    def fill(self, row: Int32Words) -> bool:
        row[:] = words_of([t for t in range(self.SIZE) if self._allows(t)], len(row) * 32)
        return True

    def advance(self, token: Token) -> None:
        self.log["advance"] += 1
        if not self._allows(token):
            raise FilterError(f"toy does not allow {token}")
        self.tokens.append(token)

    def can_end(self) -> bool:
        return sum(self.tokens) % 2 == 0

    def reset(self) -> None:
        self.log["reset"] += 1
        self.tokens.clear()


class CopyableToy(Toy):
    """The same with ``fork``."""

    def fork(self) -> CopyableToy:
        self.log["fork"] += 1
        twin = type(self)(self.log)
        twin.tokens = self.tokens.copy()
        return twin


class NativeToy(CopyableToy):
    """The same with ``rewind``."""

    def rewind(self, to: int) -> None:
        self.log["rewind"] += 1
        del self.tokens[to:]


class Fixed:
    """A filter that allows the same tokens for ever; ``ends`` says whether the text may end."""

    def __init__(self, tokens: Sequence[Token] | None, *, ends: bool = False) -> None:
        self._tokens = tokens
        self._ends = ends

    def fill(self, row: Int32Words) -> bool:
        if self._tokens is None:
            return False
        row[:] = no_tokens(len(row) * 32) | words_of(self._tokens, len(row) * 32)
        return True

    def advance(self, token: Token) -> None:
        if self._tokens is not None and token not in self._tokens:
            raise FilterError(f"{token} is not allowed")

    def can_end(self) -> bool:
        return self._ends

    def reset(self) -> None:
        pass
