"""Constraints of other libraries, which are optional: lm-format-enforcer and outlines-core.

The states of these libraries are values, so a rewind only drops the latest ones.

The parsers of lm-format-enforcer read characters, so only tokens that are whole characters are
allowed. Its enforcer remembers every history that it was asked about; here it is asked about one
parser at a time, without a history, so it stays small. The index of outlines-core is a table of
states and tokens, computed when a pattern is bound for the first time: that takes from milliseconds
to minutes, and memory, depending on the size of the pattern and of the vocabulary. The most
recently used ones are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from ..errors import FilterError, GrammarError, OptionError
from ..forks import forked
from ..recent import Recent
from ..tokens import AnyTokenizer, Token, Vocabulary
from .engine import shortened
from .protocol import Int32Words, Running, words_of

_INDEXES = 8  # indexes kept for one vocabulary
_ROWS = 256  # rows kept for one index


def _library(package: str, extra: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise OptionError(
            "filters", f"this filter needs {package}: pip install 'mlxgen[{extra}]'"
        ) from error


def _ordinary(vocabulary: Vocabulary, vocab_size: int) -> Sequence[Token]:
    return list(filter(vocabulary.is_ordinary, range(min(vocab_size, vocabulary.size))))


@dataclass(slots=True, eq=False)
class StatesFilter(Running):
    """``states`` are the first one and that after each token fed; nothing changes a state.

    ``row`` gives the tokens that may follow a state, and ``after`` the next state, or None for a
    token that is not allowed.
    """

    name: str
    states: list[Any]
    row: Callable[[Any], Int32Words]
    after: Callable[[Any, Token], Any]
    ends: Callable[[Any], bool]

    def fill(self, row: Int32Words) -> bool:
        row[:] = self.row(self.states[-1])
        return True

    def advance(self, token: Token, /) -> None:
        state = self.after(self.states[-1], token)
        if state is None:
            raise FilterError(f"{self.name} does not allow token {token} here")
        self.states.append(state)

    def can_end(self) -> bool:
        return bool(self.ends(self.states[-1]))

    def rewind(self, to: int) -> None:
        del self.states[to + 1 :]

    def fork(self) -> StatesFilter:
        return forked(self, shared=("row", "after", "ends"))

    def validate(self, tokens: Sequence[Token]) -> int:
        state = self.states[-1]
        for count, token in enumerate(tokens):
            if (state := self.after(state, token)) is None:
                return count
        return len(tokens)


# ---- lm-format-enforcer ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LMFormatEnforcer:
    """What a character-level parser of lm-format-enforcer accepts.

    ``make_parser`` returns a new parser, once for each binding, as in
    ``LMFormatEnforcer(lambda: JsonSchemaParser(schema))``; ``.json_schema(schema)`` and
    ``.regex(pattern)`` make the two most common ones.
    """

    make_parser: Callable[[], Any]

    def __post_init__(self) -> None:
        if not callable(self.make_parser):
            raise OptionError(
                "filters",
                "LMFormatEnforcer: expected a function that makes a parser, got "
                f"{self.make_parser!r}",
            )

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str | None = None) -> LMFormatEnforcer:
        """JSON that is valid against a schema; None: any JSON."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return cls(_Make("JsonSchemaParser", text))

    @classmethod
    def regex(cls, pattern: str) -> LMFormatEnforcer:
        """Text of which a regular expression matches the whole."""
        return cls(_Make("RegexParser", json.dumps(pattern)))

    def bind(
        self, tokenizer: AnyTokenizer, vocab_size: int, *, opens: bool = False
    ) -> StatesFilter:
        """As ``Specification.bind``; ``opens``: for a text that loses its leading space."""
        library, vocabulary = _library("lmformatenforcer", "lmfe"), Vocabulary.of(tokenizer)

        def words() -> tuple[dict[Token, str], Any]:
            pieces = {t: vocabulary.piece(t) for t in _ordinary(vocabulary, vocab_size)}
            decoded = ((token, piece.decode(errors="replace")) for token, piece in pieces.items())
            texts = {token: text for token, text in decoded if text and "\ufffd" not in text}
            # Every piece is the token's own text whatever precedes it, so nothing needs decoding.
            data = library.TokenEnforcerTokenizerData(
                [(*item, True) for item in texts.items()],
                vocabulary.decode,
                sorted(vocabulary.eos),
                False,
                vocab_size,
            )
            return texts, data

        texts, data = vocabulary.derived(("lm-format-enforcer", vocab_size), words)
        try:
            parser = self.make_parser()
            if opens:
                spaced = library.SequenceParser([library.StringParser(" "), parser])
                parser = library.UnionParser([parser, spaced])
            enforcer = library.TokenEnforcer(data, parser)
        except Exception as error:
            raise GrammarError(f"{shortened(repr(self))}: {error}") from error

        def row(parser: Any) -> Int32Words:
            enforcer.prefix_states.clear()
            enforcer.root_parser = parser
            return words_of(enforcer.get_allowed_tokens([]).allowed_tokens, vocab_size)

        def after(parser: Any, token: Token) -> Any:
            for character in texts.get(token, "\ufffd"):
                if character not in parser.get_allowed_characters():
                    return None
                parser = parser.add_character(character)
            return parser

        return StatesFilter(
            "lm-format-enforcer", [parser], row, after, lambda parser: bool(parser.can_end())
        )

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> StatesFilter:
        """As ``bind``, for the start of a text that loses its leading space."""
        return self.bind(tokenizer, vocab_size, opens=True)


@dataclass(frozen=True, slots=True)
class _Make:
    """A function that makes a parser of the package; equal to others that make the same."""

    parser: str
    argument: str  # as JSON

    def __call__(self) -> Any:
        return getattr(_library("lmformatenforcer", "lmfe"), self.parser)(json.loads(self.argument))


# ---- outlines-core -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutlinesCore:
    """Text of which a regular expression matches the whole; ``.json_schema(schema)`` for JSON."""

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
        library = _library("outlines_core.json_schema", "outlines")
        text = schema if isinstance(schema, str) else json.dumps(schema)
        try:
            return cls(library.build_regex_from_schema(text, whitespace))
        except Exception as error:
            raise GrammarError(f"OutlinesCore: {error}") from error

    def bind(
        self, tokenizer: AnyTokenizer, vocab_size: int, *, opens: bool = False
    ) -> StatesFilter:
        """As ``Specification.bind``; ``opens``: for a text that loses its leading space."""
        library, vocabulary = _library("outlines_core", "outlines"), Vocabulary.of(tokenizer)

        def words() -> Any:
            pieces: dict[bytes, list[Token]] = {}
            for token in _ordinary(vocabulary, vocab_size):
                pieces.setdefault(vocabulary.piece(token), []).append(token)
            # It wants one end token, although it is never asked where the text may end.
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

        def after(state: int, token: Token) -> int | None:
            following: int | None = index.get_next_state(state, token)
            return None if token in vocabulary.eos else following

        pattern = f" ?(?:{self.pattern})" if opens else self.pattern
        kept: Recent[tuple[str, int], Any]
        kept = vocabulary.derived("outlines-core", lambda: Recent(_INDEXES))
        try:
            index, row = kept.get((pattern, vocab_size), table)
        except Exception as error:
            raise GrammarError(f"{shortened(repr(self))}: {error}") from error
        first = index.get_initial_state()
        return StatesFilter("outlines-core", [first], row, after, index.is_final_state)

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> StatesFilter:
        """As ``bind``, for the start of a text that loses its leading space."""
        return self.bind(tokenizer, vocab_size, opens=True)
