"""The protocol of filters, and the packed bits in which they write the tokens that they allow.

Invariant: a row has exactly ``word_count(vocab_size)`` words of ``int32``, and bit ``t % 32`` of
word ``t // 32`` says whether token ``t`` is allowed. The bits of end tokens, and those from
``vocab_size`` on, are ignored: the constraint writes these.

A filter says which tokens may come next, given those it was fed. It is fed ordinary tokens only:
``can_end`` says where the text may end, and only the constraint deals with end tokens. A filter may
have more methods than ``Filter`` requires: ``Running`` lists them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from ..errors import OptionError
from ..tokens.vocabulary import AnyTokenizer, Token
from ..workers import Work

Int32Words: TypeAlias = npt.NDArray[np.int32]


class Filter(Protocol):
    """A running filter: what may come next in one sequence."""

    def fill(self, row: Int32Words) -> bool:
        """Writes the allowed next tokens; False: all are allowed, whatever ``row`` holds."""

    def advance(self, token: Token, /) -> None:
        """Takes one token. FilterError, and no change, if it is not allowed."""

    def can_end(self) -> bool:
        """Whether the text may end here."""

    def reset(self) -> None:
        """Goes back to the state before the first token."""


class Specification(Protocol):
    """What a caller passes: frozen and reusable; ``bind`` makes filters from it.

    A specification may also have these:

        bind_opening    as ``bind``, for a text whose first token loses its leading space in the
                        decoder
        by_bytes        whether only the bytes of ordinary tokens matter to it: then ``close_json``
                        searches for ends in a vocabulary of bytes, which is faster and finds more
        left_out        the parts of its input that it does not enforce
        specifications  those that it combines, whose ``by_bytes`` and ``left_out`` are its own
    """

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> Filter:
        """A new filter for one sequence; ``vocab_size`` is the width of the logits.

        GrammarError, before anything is generated, if the specification cannot be met.
        """


class Objection(NamedTuple):
    """A complaint: ``reason``, about the newest ``tokens`` tokens that a filter was fed.

    ``is_final``: the text must not stand.
    """

    reason: str
    tokens: int
    is_final: bool


class Running(ABC):
    """The base of filters that have all methods; others may have only some of them.

    - ``rewinds``: whether it can go back without being fed the text again.
    - ``checks``: whether a text may have to be taken back even where it may end.
    """

    __slots__ = ()

    rewinds: bool = True
    checks: bool = False

    @abstractmethod
    def fill(self, row: Int32Words) -> bool: ...
    @abstractmethod
    def advance(self, token: Token, /) -> None: ...
    @abstractmethod
    def can_end(self) -> bool: ...

    @abstractmethod
    def rewind(self, to: int) -> None:
        """Goes back to the state after ``to`` tokens; does nothing if there are no more."""

    @abstractmethod
    def fork(self) -> Self:
        """An independent copy."""

    @abstractmethod
    def validate(self, tokens: Sequence[Token]) -> int:
        """How many of ``tokens``, in order, it would take; changes nothing."""

    def reset(self) -> None:
        self.rewind(0)

    def forced(self) -> Sequence[Token]:
        """Tokens that must come next, as far as it knows them."""
        return ()

    def hint(self) -> Sequence[Token]:
        """Tokens that lead towards an end, as a suggestion."""
        return ()

    def unchecked(self) -> tuple[int, bool]:
        """How many of the newest tokens may have to be taken back, and whether a part of them is
        complete and must be checked now."""
        return 0, False

    def objection(self, *, ends: bool = False) -> Objection | Work | None:
        """What is wrong with a text that may end here, or with a complete part of it; or the work
        that has to finish before this is known. ``ends``: the text ends here, and all of it is
        checked, even if a part is due."""
        return None


def is_filter(thing: object) -> TypeGuard[Filter]:
    """Whether a thing has a filter's methods. (``isinstance`` with a protocol takes many µs.)"""
    names = ("fill", "advance", "can_end", "reset")
    return all(hasattr(thing, name) for name in names) and not isinstance(thing, type)


def is_specification(thing: object) -> TypeGuard[Specification]:
    """Whether a thing has the method of a specification."""
    return hasattr(thing, "bind") and not isinstance(thing, type)


def is_by_bytes(thing: object) -> bool:
    """Whether a thing is a specification that may be bound to a vocabulary of bytes."""
    parts = _parts(thing)
    return bool(getattr(thing, "by_bytes", parts and all(map(is_by_bytes, parts))))


def left_out(thing: object) -> Iterator[str]:
    """The parts of its input that a specification does not enforce."""
    yield from getattr(thing, "left_out", ())
    for part in _parts(thing):
        yield from left_out(part)


def _parts(thing: object) -> Sequence[Specification]:
    parts: Sequence[Specification] = getattr(thing, "specifications", ())
    return parts


def bind_opening(spec: Specification, tokenizer: AnyTokenizer, vocab_size: int) -> Filter:
    """A specification's ``bind_opening`` if it has one, else its ``bind``."""
    bind: Callable[[AnyTokenizer, int], Filter] = getattr(spec, "bind_opening", spec.bind)
    return bind(tokenizer, vocab_size)


def optional(package: str, extra: str) -> Any:
    """A module of another library. OptionError that says what to install, if it is missing."""
    try:
        return import_module(package)
    except ImportError as error:
        raise OptionError(
            "filters", f"this filter needs {package}: pip install 'mlxgen[{extra}]'"
        ) from error


# ---- rows of bits --------------------------------------------------------------------------------


def word_count(vocab_size: int) -> int:
    """The number of words in a row."""
    return (vocab_size + 31) // 32


def words_of(tokens: Iterable[Token] | npt.NDArray[np.integer[Any]], vocab_size: int) -> Int32Words:
    """A new row that allows exactly these tokens; ids outside ``[0, vocab_size)`` are left out."""
    ids = np.fromiter(tokens, np.int64) if not isinstance(tokens, np.ndarray) else tokens
    flags = np.zeros(word_count(vocab_size) * 32, dtype=np.bool_)
    flags[ids[(ids >= 0) & (ids < vocab_size)]] = True
    return np.packbits(flags, bitorder="little").view("<i4").astype(np.int32, copy=False)


def no_tokens(vocab_size: int) -> Int32Words:
    """A new row that allows no token."""
    return np.zeros(word_count(vocab_size), dtype=np.int32)


def without_tokens(row: Int32Words | None, tokens: Iterable[Token], vocab_size: int) -> Int32Words:
    """A new row that allows what ``row`` allows (None: every token), except these."""
    if row is None:
        row = words_of(np.arange(vocab_size), vocab_size)
    return row & ~words_of(tokens, vocab_size)


def tokens_of(row: Int32Words) -> npt.NDArray[np.int64]:
    """The ids that a row allows, in ascending order."""
    words = np.flatnonzero(row)  # mostly few; the rest need not be unpacked
    flags = np.unpackbits(row[words].astype("<i4").view(np.uint8), bitorder="little")
    bits = np.flatnonzero(flags)
    tokens: npt.NDArray[np.int64] = words[bits >> 5] * 32 + (bits & 31)
    return tokens


def allows(row: Int32Words, token: Token) -> bool:
    """Whether a row allows one token; False for ids without a bit."""
    return 0 <= token < len(row) * 32 and bool(int(row[token >> 5]) >> (token & 31) & 1)
