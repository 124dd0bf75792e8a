"""Filters from the indexes of outlines-core; the package is optional.

An index is a table of states and tokens, computed when a pattern is first bound: that takes from
milliseconds to minutes, and memory, depending on the size of the pattern and of the vocabulary. The
most recently used ones are kept. States are numbers, so a rewind only drops the latest ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import FilterError, GrammarError, OptionError
from ..forks import forked
from ..recent import Recent
from ..tokens import AnyTokenizer, Token, Vocabulary
from .engine import shortened
from .protocol import Int32Words, optional, words_of

_INDEXES = 8  # indexes kept for one vocabulary
_ROWS = 256  # rows kept for one index


@dataclass(frozen=True, slots=True)
class OutlinesCore:
    """Text that a regular expression matches as a whole; ``.json_schema(schema)`` for JSON."""

    pattern: str

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
        library = optional("outlines_core.json_schema", "outlines")
        text = schema if isinstance(schema, str) else json.dumps(schema)
        try:
            return cls(library.build_regex_from_schema(text, whitespace))
        except Exception as error:
            raise GrammarError(f"OutlinesCore: {error}") from error

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int, *, opens: bool = False) -> _Filter:
        """As ``Specification.bind``; ``opens``: for a text that loses its leading space."""
        library, vocabulary = optional("outlines_core", "outlines"), Vocabulary.of(tokenizer)
        pattern = f" ?(?:{self.pattern})" if opens else self.pattern

        def words() -> Any:
            pieces: dict[bytes, list[Token]] = {}
            for token in vocabulary.starting_with(b"").tolist():
                if token < vocab_size:
                    pieces.setdefault(vocabulary.piece(token), []).append(token)
            # It needs an end token, although it is never asked where the text may end.
            end = min(vocabulary.eos, default=max(vocab_size, vocabulary.size))
            return library.Vocabulary(end, pieces)

        def table() -> tuple[Any, Callable[[int], Int32Words]]:
            known = vocabulary.derived(("outlines-core", vocab_size), words)
            index = library.Index(pattern, known)

            @lru_cache(_ROWS)
            def row(state: int) -> Int32Words:
                allowed = np.array(list(index.get_allowed_tokens(state) or ()), dtype=np.int64)
                return words_of(allowed, vocab_size)

            return index, row

        kept: Recent[tuple[str, int], Any]
        kept = vocabulary.derived("outlines-core", lambda: Recent(_INDEXES))
        try:
            index, row = kept.get((pattern, vocab_size), table)
        except Exception as error:
            raise GrammarError(f"{shortened(repr(self))}: {error}") from error
        return _Filter(index, row)

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> _Filter:
        """As ``bind``, for the start of a text that loses its leading space."""
        return self.bind(tokenizer, vocab_size, opens=True)


class _Filter:
    """The states before the first token and after each one."""

    def __init__(self, index: Any, row: Callable[[int], Int32Words]) -> None:
        self._index, self._row = index, row
        self._states: list[int] = [index.get_initial_state()]

    def fill(self, row: Int32Words) -> bool:
        row[:] = self._row(self._states[-1])
        return True

    def advance(self, token: Token) -> None:
        state = self._index.get_next_state(self._states[-1], token)
        if state is None:
            raise FilterError(f"outlines-core does not allow token {token} here")
        self._states.append(state)

    def can_end(self) -> bool:
        return bool(self._index.is_final_state(self._states[-1]))

    def reset(self) -> None:
        self.rewind(0)

    def rewind(self, to: int) -> None:
        del self._states[to + 1 :]

    def fork(self) -> _Filter:
        return forked(self, shared=("_index", "_row"))
