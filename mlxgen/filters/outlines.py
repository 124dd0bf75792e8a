"""OutlinesCore: constraints of the optional package outlines-core.

Its index is a table of states and tokens, computed when a pattern is bound for the first time:
that takes from milliseconds to minutes, and memory, depending on the size of the pattern and of
the vocabulary. The most recently used ones are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import FilterError, GrammarError, OptionError
from ..recent import Recent
from ..tokens.vocabulary import Token, Vocabulary
from .adapter import Adapter, StatesFilter
from .protocol import Int32Words, words_of

_INDEXES = 8  # indexes kept for one vocabulary
_ROWS = 256  # rows kept for one index


@dataclass(frozen=True, slots=True)
class OutlinesCore(Adapter):
    """Text of which a regular expression matches the whole; ``.json_schema(schema)`` for JSON."""

    pattern: str

    PACKAGE = "outlines_core"
    EXTRA = "outlines"

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise OptionError("filters", f"OutlinesCore: expected a string, got {self.pattern!r}")

    @classmethod
    def json_schema(
        cls, schema: Mapping[str, Any] | str, *, whitespace: str | None = None
    ) -> OutlinesCore:
        """JSON that is valid against a schema. GrammarError if no pattern can be made of it.

        ``whitespace`` is a pattern for what may stand between the parts; by default that is at
        most one space.
        """
        cls._library()
        from outlines_core.json_schema import build_regex_from_schema

        text = schema if isinstance(schema, str) else json.dumps(schema)
        try:
            return cls(build_regex_from_schema(text, whitespace))
        except Exception as error:
            raise GrammarError(f"OutlinesCore: {error}") from error

    def _after_space(self) -> OutlinesCore:
        return OutlinesCore(f" (?:{self.pattern})")

    def _states(self, vocabulary: Vocabulary, vocab_size: int) -> StatesFilter:
        tables: Recent[tuple[str, int], _Table]
        tables = vocabulary.derived("outlines-core", lambda: Recent(_INDEXES))
        table = tables.get((self.pattern, vocab_size), lambda: self._table(vocabulary, vocab_size))
        start = table.index.get_initial_state()
        return StatesFilter([start], table.row, table.after, table.index.is_final_state)

    def _table(self, vocabulary: Vocabulary, vocab_size: int) -> _Table:
        library = self._library()
        words = vocabulary.derived(
            ("outlines-core", vocab_size), lambda: _vocabulary(library, vocabulary, vocab_size)
        )
        return _Table(library.Index(self.pattern, words), vocabulary.eos, vocab_size)


class _Table:
    """An index, with the rows of the most recently used states, which are numbers."""

    def __init__(self, index: Any, eos: frozenset[Token], vocab_size: int) -> None:
        self.index = index
        self._eos = eos
        self._vocab_size = vocab_size
        self._rows: Recent[int, Int32Words] = Recent(_ROWS)

    def row(self, state: int) -> Int32Words:
        return self._rows.get(state, lambda: self._made(state))

    def _made(self, state: int) -> Int32Words:
        allowed = self.index.get_allowed_tokens(state) or ()
        return words_of(np.array(list(allowed), dtype=np.int64), self._vocab_size)

    def after(self, state: int, token: Token) -> int:
        following: int | None = self.index.get_next_state(state, token)
        if following is None or token in self._eos:
            raise FilterError(f"outlines-core does not allow token {token} here")
        return following


def _vocabulary(library: Any, vocabulary: Vocabulary, vocab_size: int) -> Any:
    pieces: dict[bytes, list[Token]] = {}
    for token in filter(vocabulary.is_ordinary, range(min(vocab_size, vocabulary.size))):
        pieces.setdefault(vocabulary.piece(token), []).append(token)
    # It wants one end token, although it is never asked where the text may end.
    end = min(vocabulary.eos, default=max(vocab_size, vocabulary.size))
    return library.Vocabulary(end, pieces)
