"""Filters of which the first token of a text chooses one.

``FirstToken`` is for a model that may begin to think or to call a tool and otherwise follows a
schema; ``opening`` is for the start of a text whose first space the decoder drops. Invariant:
before the first token all filters are fresh; after it, exactly one of them is in use.

SentencePiece-style models begin their answer with a token such as ``▁{``: bytes `` {``, text
``{``. A filter constrains the text. So a first token that starts with a space goes to a filter
that wants one space and then what is specified, and every other first token to the plain one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..tokens import Vocabulary
from ..tokens.vocabulary import AnyTokenizer, Token
from .compose import bind_opening
from .protocol import Filter, Int32Words, Specification, allows, is_by_bytes, words_of
from .replay import Replay


@dataclass(frozen=True, slots=True)
class FirstToken:
    """``otherwise``, unless the text begins with a token that leads to another specification.

    The other specifications see the whole text, its first token included.
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

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> FirstTokenFilter:
        """As ``bind``, for the start of a text that loses its leading space."""
        otherwise = bind_opening(self.otherwise, tokenizer, vocab_size)
        return self._bound(otherwise, tokenizer, vocab_size)

    def _bound(
        self, otherwise: Filter, tokenizer: AnyTokenizer, vocab_size: int
    ) -> FirstTokenFilter:
        leads = [spec.bind(tokenizer, vocab_size) for _, spec in self.leads]
        lanes = [words_of([token], vocab_size) for token, _ in self.leads]
        return FirstTokenFilter(list(map(Replay, (otherwise, *leads))), lanes)


def opening(
    plain: Filter, after_space: Filter, vocabulary: Vocabulary, vocab_size: int
) -> FirstTokenFilter:
    """Both ways in which a text may start: ``after_space`` wants a space, and then the same."""
    spaced = vocabulary.derived(
        ("spaced", vocab_size), lambda: words_of(vocabulary.starting_with(b" "), vocab_size)
    )
    return FirstTokenFilter([Replay(plain), Replay(after_space)], [spaced])


class FirstTokenFilter:
    """The running filter; rewinds and forks as well as its parts do.

    ``lanes`` are the first tokens that lead to each part but the first.
    """

    def __init__(self, parts: Sequence[Replay], lanes: Sequence[Int32Words]) -> None:
        self._parts = parts
        self._lanes = lanes
        self._chosen: int | None = None

    @property
    def _used(self) -> Replay:
        return self._parts[self._chosen or 0]

    def _choice(self, token: Token) -> int:
        if self._chosen is not None:
            return self._chosen
        lanes = enumerate(self._lanes, start=1)
        return next((number for number, lane in lanes if allows(lane, token)), 0)

    def fill(self, row: Int32Words) -> bool:
        """As ``Filter.fill``."""
        if self._chosen is not None:
            return self._used.fill(row)
        if not self._used.fill(row):
            row[:] = -1
        mine = np.empty_like(row)
        for part, lane in zip(self._parts[1:], self._lanes, strict=True):
            if not part.fill(mine):
                mine[:] = -1
            row &= ~lane
            row |= mine & lane
        return True

    def asked(self) -> Sequence[Filter]:
        """The filters that ``fill`` asks."""
        return (self._used,) if self._chosen is not None else tuple(self._parts)

    def advance(self, token: Token) -> None:
        """As ``Filter.advance``."""
        chosen = self._choice(token)
        self._parts[chosen].advance(token)
        self._chosen = chosen

    def can_end(self) -> bool:
        """As ``Filter.can_end``."""
        return self._used.can_end()

    def reset(self) -> None:
        """As ``Filter.reset``."""
        self.rewind(0)

    def rewind(self, to: int) -> None:
        """Back to the state after the first ``to`` tokens."""
        if self._chosen is not None:
            self._used.rewind(to)
            if to <= 0:
                self._chosen = None

    def fork(self) -> FirstTokenFilter:
        """An independent copy."""
        twin = FirstTokenFilter([part.fork() for part in self._parts], self._lanes)
        twin._chosen = self._chosen
        return twin

    def forced(self) -> Sequence[Token]:
        """What the filter in use forces; nothing before the first token chooses it."""
        return self._used.forced() if self._chosen is not None else ()

    def hint(self) -> Sequence[Token]:
        """The hint of the filter in use; before the first token, that of ``otherwise``."""
        return self._used.hint()

    def validate(self, tokens: Sequence[Token]) -> int:
        """How many of ``tokens`` would be taken."""
        return self._parts[self._choice(tokens[0])].validate(tokens) if tokens else 0
