"""Several filters as one: what all of them allow.

Invariant: all parts of an intersection have the same history. An operation happens in every
part, or raises and happens in none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..errors import OptionError, RewindError
from ..forks import forked
from ..tokens.vocabulary import AnyTokenizer, Token
from .protocol import (
    Filter,
    Int32Words,
    Objection,
    Specification,
    is_by_bytes,
    is_specification,
)
from .replay import whole

if TYPE_CHECKING:
    from .checked import Checking


T = TypeVar("T")


@dataclass(frozen=True, slots=True, init=False)
class AllOf:
    """Allows what every one of the specifications allows."""

    specifications: tuple[Specification, ...]

    def __init__(self, *specifications: Specification) -> None:
        for spec in specifications:
            if not is_specification(spec):
                raise OptionError("filters", f"AllOf: expected specifications, got {spec!r}")
        object.__setattr__(self, "specifications", specifications)

    @property
    def by_bytes(self) -> bool:
        """As in ``Specification``."""
        return all(map(is_by_bytes, self.specifications))

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> Intersection:
        """As ``Specification.bind``."""
        return Intersection([s.bind(tokenizer, vocab_size) for s in self.specifications])

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> Intersection:
        """As ``bind``, for the start of a text that loses its leading space."""
        return Intersection([bind_opening(s, tokenizer, vocab_size) for s in self.specifications])


def bind_opening(spec: Specification, tokenizer: AnyTokenizer, vocab_size: int) -> Filter:
    """A specification's ``bind_opening`` if it has one, else its ``bind``."""
    bind: Callable[[AnyTokenizer, int], Filter] = getattr(spec, "bind_opening", spec.bind)
    return bind(tokenizer, vocab_size)


class Intersection:
    """Running filters that all have to agree; itself a filter with all methods.

    ``parts`` are filters that were fed nothing so far; each gets a ``Replay`` if it lacks methods.
    """

    def __init__(self, parts: Sequence[Filter]) -> None:
        self.parts = tuple(map(whole, parts))
        self._fed: list[Token] = []

    # ---- forwards and back -----------------------------------------------------------------

    def advance(self, token: Token) -> None:
        try:
            for part in self.parts:
                part.advance(token)
        except BaseException:
            for part in self.parts:
                part.rewind(len(self._fed))
            raise
        self._fed.append(token)

    def rewind(self, to: int) -> None:
        if to < 0:
            raise RewindError(f"cannot rewind to {to} tokens", len(self._fed))
        done: list[Filter] = []
        for part in self.parts:
            try:
                part.rewind(to)
            except BaseException:
                for other in done:
                    for token in self._fed[to:]:
                        other.advance(token)
                raise
            done.append(part)
        del self._fed[to:]

    def reset(self) -> None:
        self.rewind(0)

    def fork(self) -> Intersection:
        return forked(self, parts=tuple(part.fork() for part in self.parts))

    # ---- questions -------------------------------------------------------------------------

    def fill(self, row: Int32Words) -> bool:
        filled = False
        spare: Int32Words | None = None
        for part in self.parts:
            if not filled:
                filled = part.fill(row)
                continue
            if spare is None:
                spare = np.empty_like(row)
            if part.fill(spare):
                np.bitwise_and(row, spare, out=row)
        return filled

    def can_end(self) -> bool:
        return all(part.can_end() for part in self.parts)

    def forced(self) -> list[Token]:
        """The longest run that one part forces and all others would take."""
        best: list[Token] = []
        for part in self.parts:
            run = list(part.forced())
            if len(run) > len(best):
                for other in self.parts:
                    if other is not part and run:
                        del run[other.validate(run) :]
                best = max(best, run, key=len)
        return best

    def validate(self, tokens: Sequence[Token]) -> int:
        count = len(tokens)
        for part in self.parts:
            if not count:
                break
            count = min(count, part.validate(tokens[:count]))
        return count


# ---- what a filter may have, or those that it is made of ----------------------------------------


def asked(filter: Filter) -> Sequence[Filter]:
    """The filters of which a filter is made, as far as they say what comes next; () if none."""
    ask: Callable[[], Sequence[Filter]] = getattr(
        filter, "asked", lambda: getattr(filter, "parts", ())
    )
    return ask()


def checks(filter: Filter) -> bool:
    """Whether a filter holds only a part of what was asked, so that finished texts are checked."""
    return getattr(filter, "checks", False) or any(map(checks, getattr(filter, "parts", ())))


def unchecked(filter: Filter) -> tuple[int, bool]:
    """How many of the newest tokens are of a text that it will check, and whether a part of it is
    complete that it checks before the end."""
    if hasattr(filter, "unchecked"):
        found: tuple[int, bool] = filter.unchecked()
        return found
    each = list(map(unchecked, asked(filter)))
    return max((count for count, _ in each), default=0), any(is_due for _, is_due in each)


def checking(filter: Filter) -> Checking | None:
    """The check of a text or a part of it that is not over, if it has one that takes its time."""
    if hasattr(filter, "checking"):
        found: Checking | None = filter.checking()
        return None if found is None or found.is_over else found
    return _first(checking, filter)


def objection(filter: Filter) -> Objection | None:
    """What a filter finds wrong with a text that may end, if it checks such texts."""
    if hasattr(filter, "objection"):
        found: Objection | None = filter.objection()
        return found
    return _first(objection, filter)


def _first(ask: Callable[[Filter], T | None], filter: Filter) -> T | None:
    """The first answer of those of which a filter is made; only what is due, if anything is."""
    parts = asked(filter)
    due = [part for part in parts if unchecked(part)[1]]
    return next((found for found in map(ask, due or parts) if found is not None), None)


def hint(filter: Filter) -> Sequence[Token]:
    """Tokens that lead a filter towards an end, if it knows any."""
    if hasattr(filter, "hint"):
        run: Sequence[Token] = filter.hint()
        return run
    return next((run for run in map(hint, asked(filter)) if run), ())
