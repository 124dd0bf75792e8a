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
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import methodcaller
from typing import Any, ClassVar

import numpy as np

from ..errors import FilterError, GrammarError, MlxgenError, OptionError
from ..forks import forked
from ..recent import Recent
from ..tokens import Token, Vocabulary
from .any_of import Openable
from .engine import shortened
from .protocol import Int32Words, Running, words_of

_INDEXES = 8  # indexes kept for one vocabulary
_ROWS = 256  # rows kept for one index


class Adapter(Openable):
    """A specification in the words of another library; ``PACKAGE`` and ``EXTRA`` tell which."""

    __slots__ = ()

    PACKAGE: ClassVar[str]
    EXTRA: ClassVar[str]

    @abstractmethod
    def _states(self, vocabulary: Vocabulary, vocab_size: int, *, spaced: bool) -> StatesFilter:
        """As ``_running``; any error of the library says why there is no such filter."""

    @classmethod
    def _library(cls) -> Any:
        try:
            return __import__(cls.PACKAGE)
        except ImportError as error:
            raise OptionError(
                "filters", f"{cls.__name__} needs {cls.PACKAGE}: pip install 'mlxgen[{cls.EXTRA}]'"
            ) from error

    def _running(self, vocabulary: Vocabulary, vocab_size: int, *, spaced: bool) -> StatesFilter:
        try:
            return self._states(vocabulary, vocab_size, spaced=spaced)
        except MlxgenError:
            raise
        except Exception as error:
            raise GrammarError(f"{shortened(repr(self))}: {error}") from error


@dataclass(slots=True, eq=False)
class StatesFilter(Running):
    """``states`` are the first one and that after each token fed; nothing changes a state.

    ``row`` gives the tokens that may follow a state, and ``after`` the next state, or a FilterError
    for a token that is not allowed.
    """

    states: list[Any]
    row: Callable[[Any], Int32Words]
    after: Callable[[Any, Token], Any]
    ends: Callable[[Any], bool]

    def fill(self, row: Int32Words) -> bool:
        row[:] = self.row(self.states[-1])
        return True

    def advance(self, token: Token, /) -> None:
        self.states.append(self.after(self.states[-1], token))

    def can_end(self) -> bool:
        return bool(self.ends(self.states[-1]))

    def rewind(self, to: int) -> None:
        del self.states[to + 1 :]

    def fork(self) -> StatesFilter:
        return forked(self, shared=("row", "after", "ends"))

    def validate(self, tokens: Sequence[Token]) -> int:
        state = self.states[-1]
        for count, token in enumerate(tokens):
            try:
                state = self.after(state, token)
            except FilterError:
                return count
        return len(tokens)


# ---- lm-format-enforcer ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LMFormatEnforcer(Adapter):
    """What a character-level parser of lm-format-enforcer accepts.

    ``make_parser`` returns a new parser, once for each binding, as in
    ``LMFormatEnforcer(lambda: JsonSchemaParser(schema))``; ``.json_schema(schema)`` and
    ``.regex(pattern)`` make the two most common ones.
    """

    make_parser: Callable[[], Any]

    PACKAGE = "lmformatenforcer"
    EXTRA = "lmfe"

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
        return cls(
            _Make("JsonSchemaParser", schema if isinstance(schema, str) else json.dumps(schema))
        )

    @classmethod
    def regex(cls, pattern: str) -> LMFormatEnforcer:
        """Text of which a regular expression matches the whole."""
        return cls(_Make("RegexParser", json.dumps(pattern)))

    def _states(self, vocabulary: Vocabulary, vocab_size: int, *, spaced: bool) -> StatesFilter:
        library = self._library()
        data = vocabulary.derived(
            ("lm-format-enforcer", vocab_size), lambda: _lmfe_words(library, vocabulary, vocab_size)
        )
        parser = self.make_parser()
        if spaced:
            parser = library.SequenceParser([library.StringParser(" "), parser])
        enforcer = library.TokenEnforcer(data, parser)

        def row(parser: Any) -> Int32Words:
            enforcer.prefix_states.clear()
            enforcer.root_parser = parser
            return words_of(enforcer.get_allowed_tokens([]).allowed_tokens, vocab_size)

        def after(parser: Any, token: Token) -> Any:
            text = _text(vocabulary, token)
            if not text or token in vocabulary.special:
                raise FilterError(
                    f"lm-format-enforcer reads whole characters; token {token} has none"
                )
            for character in text:
                if character not in parser.get_allowed_characters():
                    raise FilterError(
                        f"lm-format-enforcer does not allow token {token} ({text!r}) here"
                    )
                parser = parser.add_character(character)
            return parser

        return StatesFilter([parser], row, after, methodcaller("can_end"))


@dataclass(frozen=True, slots=True)
class _Make:
    """A function that makes a parser of the package; equal to others that make the same."""

    parser: str
    argument: str  # as JSON

    def __call__(self) -> Any:
        return getattr(LMFormatEnforcer._library(), self.parser)(json.loads(self.argument))


def _text(vocabulary: Vocabulary, token: Token) -> str:
    """The text of a token; empty if it is not whole characters."""
    try:
        return vocabulary.piece(token).decode()
    except UnicodeDecodeError:
        return ""


def _lmfe_words(library: Any, vocabulary: Vocabulary, vocab_size: int) -> Any:
    ordinary = filter(vocabulary.is_ordinary, range(min(vocab_size, vocabulary.size)))
    tokens = [(token, text, True) for token in ordinary if (text := _text(vocabulary, token))]
    # Every piece is the token's own text whatever precedes it, so nothing needs decoding.
    return library.TokenEnforcerTokenizerData(
        tokens, vocabulary.decode, sorted(vocabulary.eos), False, vocab_size
    )


# ---- outlines-core -----------------------------------------------------------------------------


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

    def _states(self, vocabulary: Vocabulary, vocab_size: int, *, spaced: bool) -> StatesFilter:
        pattern = f" (?:{self.pattern})" if spaced else self.pattern
        tables: Recent[tuple[str, int], Callable[[], StatesFilter]]
        tables = vocabulary.derived("outlines-core", lambda: Recent(_INDEXES))
        return tables.get((pattern, vocab_size), lambda: _table(pattern, vocabulary, vocab_size))()


def _table(pattern: str, vocabulary: Vocabulary, vocab_size: int) -> Callable[[], StatesFilter]:
    """Makes running filters of one index, whose states are numbers, with the latest rows."""
    library = OutlinesCore._library()
    words = vocabulary.derived(
        ("outlines-core", vocab_size), lambda: _outlines_words(library, vocabulary, vocab_size)
    )
    index, eos = library.Index(pattern, words), vocabulary.eos

    @lru_cache(_ROWS)
    def row(state: int) -> Int32Words:
        allowed = np.array(list(index.get_allowed_tokens(state) or ()), dtype=np.int64)
        return words_of(allowed, vocab_size)

    def after(state: int, token: Token) -> int:
        following: int | None = index.get_next_state(state, token)
        if following is None or token in eos:
            raise FilterError(f"outlines-core does not allow token {token} here")
        return following

    return lambda: StatesFilter([index.get_initial_state()], row, after, index.is_final_state)


def _outlines_words(library: Any, vocabulary: Vocabulary, vocab_size: int) -> Any:
    pieces: dict[bytes, list[Token]] = {}
    for token in filter(vocabulary.is_ordinary, range(min(vocab_size, vocabulary.size))):
        pieces.setdefault(vocabulary.piece(token), []).append(token)
    # It wants one end token, although it is never asked where the text may end.
    end = min(vocabulary.eos, default=max(vocab_size, vocabulary.size))
    return library.Vocabulary(end, pieces)
