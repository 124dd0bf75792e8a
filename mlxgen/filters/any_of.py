"""One of several specifications, whichever the text turns out to follow.

Invariant: a filter that is out has taken all tokens before the one that it refused, so
taking that one back brings the filter in again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import FilterError
from ..tokens.vocabulary import AnyTokenizer, Token
from .compose import bind_opening
from .protocol import Filter, Int32Words, Specification, is_by_bytes
from .replay import Replay


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Text that at least one of the specifications allows."""

    specifications: tuple[Specification, ...]

    @property
    def by_bytes(self) -> bool:
        """As in ``Specification``."""
        return all(map(is_by_bytes, self.specifications))

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        """As ``Specification.bind``."""
        return AnyOfFilter(
            [Replay(spec.bind(tokenizer, vocab_size)) for spec in self.specifications]
        )

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        """As ``bind``, for the start of a text that loses its leading space."""
        return AnyOfFilter(
            [Replay(bind_opening(spec, tokenizer, vocab_size)) for spec in self.specifications]
        )


class AnyOfFilter:
    """The running filter of ``AnyOf``; rewinds and forks as well as the others do."""

    def __init__(self, parts: Sequence[Replay]) -> None:
        self._parts = parts
        self._length = 0  # tokens so far

    def _alive(self) -> Iterator[Replay]:
        return (part for part in self._parts if len(part) == self._length)

    def fill(self, row: Int32Words) -> bool:
        """As ``Filter.fill``."""
        row[:] = 0
        mine = np.empty_like(row)
        for part in self._alive():
            if not part.fill(mine):
                return False
            row |= mine
        return True

    def asked(self) -> Sequence[Filter]:
        """The filters that ``fill`` asks."""
        return tuple(self._alive())

    def advance(self, token: Token) -> None:
        """As ``Filter.advance``."""
        taking = [part for part in self._alive() if part.validate([token])]
        if not taking:
            raise FilterError(f"none of {len(self._parts)} filters allows token {token} here")
        for part in taking:
            part.advance(token)
        self._length += 1

    def can_end(self) -> bool:
        """As ``Filter.can_end``."""
        return any(part.can_end() for part in self._alive())

    def reset(self) -> None:
        """As ``Filter.reset``."""
        self.rewind(0)

    def rewind(self, to: int) -> None:
        """Back to the state after the first ``to`` tokens."""
        for part in self._parts:
            part.rewind(to)
        self._length = min(self._length, to)

    def fork(self) -> AnyOfFilter:
        """An independent copy."""
        twin = AnyOfFilter([part.fork() for part in self._parts])
        twin._length = self._length
        return twin

    def forced(self) -> Sequence[Token]:
        """What must come next, once one filter is left."""
        alive = list(self._alive())
        return alive[0].forced() if len(alive) == 1 else ()

    def hint(self) -> Sequence[Token]:
        """Tokens that lead towards an end, from the first filter that fits."""
        return next((part.hint() for part in self._alive()), ())

    def validate(self, tokens: Sequence[Token]) -> int:
        """How many of ``tokens`` would be taken."""
        return max((part.validate(tokens) for part in self._alive()), default=0)
