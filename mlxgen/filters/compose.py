"""Several filters as one: what all of them allow.

Invariant: all parts of an intersection have the same history. An operation happens in every
part, or raises and happens in none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import OptionError, RewindError
from ..tokens.vocabulary import AnyTokenizer, Token
from .protocol import Filter, Int32Words, Specification, is_by_bytes, is_specification
from .replay import Replay


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
    """Running filters that all have to agree; itself a filter with all methods of a part.

    ``parts`` are filters that were fed nothing so far; each gets a ``Replay`` unless it is one.
    """

    def __init__(self, parts: Sequence[Filter]) -> None:
        self.parts: tuple[Replay, ...] = tuple(
            part if isinstance(part, Replay) else Replay(part) for part in parts
        )
        self._length = 0

    def __len__(self) -> int:
        return self._length

    # ---- forwards and back -----------------------------------------------------------------

    def advance(self, token: Token) -> None:
        self.advance_as((token,))

    def advance_as(self, fed: Sequence[Token]) -> None:
        try:
            for part in self.parts:
                part.advance_as(fed)
        except BaseException:
            for part in self.parts:
                part.rewind(self._length)
            raise
        self._length += 1

    def rewind(self, to: int) -> None:
        if to < 0:
            raise RewindError(f"cannot rewind to position {to}", self._length)
        done: list[Replay] = []
        for part in self.parts:
            try:
                part.rewind(to)
            except BaseException:
                for other in done:
                    for fed in part.fed_since(len(other)):
                        other.advance_as(fed)
                raise
            done.append(part)
        self._length = min(self._length, to)

    def reset(self) -> None:
        self.rewind(0)

    def fork(self) -> Intersection:
        twin = Intersection([part.fork() for part in self.parts])
        twin._length = self._length
        return twin

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

    def asked(self) -> Sequence[Filter]:
        return self.parts

    def can_end(self) -> bool:
        return all(map(Replay.can_end, self.parts))

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

    def hint(self) -> list[Token]:
        """The hint of the first part that has one."""
        return next((list(run) for run in (part.hint() for part in self.parts) if run), [])

    def validate(self, tokens: Sequence[Token]) -> int:
        count = len(tokens)
        for part in self.parts:
            if not count:
                break
            count = min(count, part.validate(tokens[:count]))
        return count
