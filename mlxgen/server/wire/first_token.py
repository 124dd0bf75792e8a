"""A specification that depends on the first token: a text, or something else entirely.

Owns the choice between running filters that the first token makes: a model may begin to
think, or to call a tool, where it is otherwise held to a schema. Must never know what
these are. Invariant: before the first token all filters are fresh; after it exactly one
of them is in use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from ...filters import Filter, Int32Words, Replay, Specification, is_by_bytes
from ...tokens.vocabulary import AnyTokenizer, Token

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FirstToken:
    """``otherwise``, unless the text begins with one of the tokens that lead elsewhere.

    The other specifications see the whole text, their first token included.
    """

    otherwise: Specification
    leads: tuple[tuple[Token, Specification], ...]

    @property
    def by_bytes(self) -> bool:
        """As in ``Specification``."""
        return all(map(is_by_bytes, (self.otherwise, *(spec for _, spec in self.leads))))

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> FirstTokenFilter:
        """As ``Specification.bind``."""
        return self._bound(self.otherwise.bind(tokenizer, vocab_size), tokenizer, vocab_size)

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> Filter:
        """As ``bind``, for the start of a text that loses its leading space."""
        opening = getattr(self.otherwise, "bind_opening", self.otherwise.bind)
        return self._bound(opening(tokenizer, vocab_size), tokenizer, vocab_size)

    def _bound(
        self, otherwise: Filter, tokenizer: AnyTokenizer, vocab_size: int
    ) -> FirstTokenFilter:
        leads = {token: Replay(spec.bind(tokenizer, vocab_size)) for token, spec in self.leads}
        return FirstTokenFilter(Replay(otherwise), leads)


class FirstTokenFilter:
    """The running filter of ``FirstToken``; rewinds and forks as far as the others do."""

    def __init__(self, otherwise: Replay, leads: Mapping[Token, Replay]) -> None:
        self._otherwise = otherwise
        self._leads = MappingProxyType(dict(leads))
        self._chosen: Replay | None = None

    def _choice(self, token: Token) -> Replay:
        return self._leads.get(token, self._otherwise) if self._chosen is None else self._chosen

    def fill(self, row: Int32Words) -> bool:
        """As ``Filter.fill``."""
        if self._chosen is not None:
            return self._chosen.fill(row)
        if not self._otherwise.fill(row):
            row[:] = -1
        mine = np.empty_like(row)
        for token, lead in self._leads.items():
            word, bit = divmod(token, 32)
            allowed = not lead.fill(mine) or bool(mine[word] >> bit & 1)
            _put(row, word, bit, allowed)
        return True

    def asked(self) -> Sequence[Filter]:
        """The filters that ``fill`` asks."""
        if self._chosen is not None:
            return (self._chosen,)
        return (self._otherwise, *self._leads.values())

    def advance(self, token: Token) -> None:
        """As ``Filter.advance``."""
        chosen = self._choice(token)
        chosen.advance(token)
        self._chosen = chosen

    def can_end(self) -> bool:
        """As ``Filter.can_end``."""
        return (self._chosen or self._otherwise).can_end()

    def reset(self) -> None:
        """As ``Filter.reset``."""
        self.rewind(0)

    def rewind(self, to: int) -> None:
        """Back to the state after the first ``to`` tokens."""
        if self._chosen is not None:
            self._chosen.rewind(to)
            if to <= 0:
                self._chosen = None

    def fork(self) -> FirstTokenFilter:
        """An independent copy."""
        leads = {token: lead.fork() for token, lead in self._leads.items()}
        twin = FirstTokenFilter(self._otherwise.fork(), leads)
        for mine, copied in zip(self._all(), twin._all(), strict=True):
            if mine is self._chosen:
                twin._chosen = copied
        return twin

    def _all(self) -> list[Replay]:
        return [self._otherwise, *self._leads.values()]

    def forced(self) -> Sequence[Token]:
        """As the filter in use; nothing before the first token, as there are several ways."""
        return self._chosen.forced() if self._chosen is not None else ()

    def hint(self) -> Sequence[Token]:
        """As the filter in use, or that for a text that begins with no special token."""
        return (self._chosen or self._otherwise).hint()

    def validate(self, tokens: Sequence[Token]) -> int:
        """How many of ``tokens`` would be taken."""
        return self._choice(tokens[0]).validate(tokens) if tokens else 0


def _put(row: NDArray[np.int32], word: int, bit: int, allowed: bool) -> None:
    words = row[word : word + 1].view(np.uint32)
    mask = np.uint32(1 << bit)
    words[0] = words[0] | mask if allowed else words[0] & ~mask
