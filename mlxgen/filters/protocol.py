"""What a filter is, and the packed bits in which filters write what they allow.

Owns the protocols ``Filter`` and ``Specification`` and a few functions on packed words.
Must never know a grammar library, a model or an array type other than NumPy's.

Invariant: a row has exactly ``word_count(vocab_size)`` words of ``int32``, and bit ``t % 32``
of word ``t // 32`` says whether token ``t`` is allowed. What a filter leaves in the bits of end
tokens and in those at or beyond ``vocab_size`` is ignored: the constraint writes these.

A filter tells what may be sampled next, given what it was fed. It is fed ordinary tokens
only: where the text may end is what ``can_end`` says, and end tokens are nobody's business
but the constraint's. A filter may have more than the protocol asks for, and then it is used:

    forced() -> Sequence[Token]      tokens that must come next
    validate(tokens) -> int          how many of these it would take, changing nothing
    rewind(to) -> None               back to the state after the first ``to`` tokens fed
    fork() -> Filter                 an independent copy
    hint() -> Sequence[Token]        tokens that lead towards an end, as a suggestion
    asked() -> Sequence[Filter]      the filters that the next ``fill`` asks, of one made of others
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from ..tokens.vocabulary import AnyTokenizer, Token

Int32Words: TypeAlias = npt.NDArray[np.int32]


class Filter(Protocol):
    """A running filter: what may come next in one sequence."""

    def fill(self, row: Int32Words) -> bool:
        """Write the allowed next tokens; False (row left as it pleases): all are allowed."""
        ...

    def advance(self, token: Token) -> None:
        """Take one token. FilterError for one that is not allowed, and nothing has changed."""
        ...

    def can_end(self) -> bool:
        """Whether the text may end here."""
        ...

    def reset(self) -> None:
        """Back to the state before the first token."""
        ...


class Specification(Protocol):
    """What a caller passes: frozen, used again and again, made into filters by ``bind``.

    A specification may also have ``bind_opening``, of the same form: the filter for a text
    of which the decoder drops the first token's leading space. And it may say ``by_bytes``, if
    of the ordinary tokens it asks for nothing but their bytes: then ``close_json`` looks for
    ends in a vocabulary of bytes, which is quicker and finds more.
    """

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> Filter:
        """A new filter for one sequence; ``vocab_size`` is the width of the logits.

        GrammarError when the specification cannot be met, before anything is generated.
        """
        ...


def is_filter(thing: object) -> TypeGuard[Filter]:
    """Whether a thing can be asked and fed. (Checks of protocols take many microseconds.)"""
    names = ("fill", "advance", "can_end", "reset")
    return all(hasattr(thing, name) for name in names) and not isinstance(thing, type)


def is_by_bytes(thing: object) -> bool:
    """Whether a thing is a specification that may be bound to a vocabulary of bytes."""
    return bool(getattr(thing, "by_bytes", False))


def is_specification(thing: object) -> TypeGuard[Specification]:
    """Whether a thing can be bound."""
    return hasattr(thing, "bind") and not isinstance(thing, type)


def word_count(vocab_size: int) -> int:
    """The number of words of a row."""
    return (vocab_size + 31) // 32


def words_of(tokens: Iterable[Token] | npt.NDArray[np.integer[Any]], vocab_size: int) -> Int32Words:
    """A new row that allows exactly these tokens; ids outside ``[0, vocab_size)`` are left out."""
    ids = np.fromiter(tokens, np.int64) if not isinstance(tokens, np.ndarray) else tokens
    flags = np.zeros(word_count(vocab_size) * 32, dtype=np.bool_)
    flags[ids[(ids >= 0) & (ids < vocab_size)]] = True
    return np.packbits(flags, bitorder="little").view("<i4").astype(np.int32, copy=False)


def no_tokens(vocab_size: int) -> Int32Words:
    """A new row that allows nothing."""
    return np.zeros(word_count(vocab_size), dtype=np.int32)


def without_tokens(row: Int32Words | None, tokens: Iterable[Token], vocab_size: int) -> Int32Words:
    """A new row: what ``row`` allows (None: every token) without these."""
    if row is None:
        row = words_of(np.arange(vocab_size), vocab_size)
    return row & ~words_of(tokens, vocab_size)


def tokens_of(row: Int32Words) -> npt.NDArray[np.int64]:
    """The ids that a row allows, ascending."""
    words = np.flatnonzero(row)  # mostly few, and the rest need not be unpacked
    flags = np.unpackbits(row[words].astype("<i4").view(np.uint8), bitorder="little")
    bits = np.flatnonzero(flags)
    tokens: npt.NDArray[np.int64] = words[bits >> 5] * 32 + (bits & 31)
    return tokens


def allows(row: Int32Words, token: Token) -> bool:
    """Whether a row allows one token; False for ids that it has no bit for."""
    return 0 <= token < len(row) * 32 and bool(int(row[token >> 5]) >> (token & 31) & 1)
