"""LMFormatEnforcer: constraints of the optional package lm-format-enforcer.

Its parsers are immutable and read characters, so a rewind only drops the latest ones. Its
enforcer remembers every history that it was asked about; here it is asked about one state at
a time, without a history, so it stays small.

Invariant: there is one parser for each token fed, the one after it. Only tokens that are
whole characters are allowed, because the parsers know nothing smaller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import FilterError, GrammarError, MlxgenError, OptionError
from ..tokens.vocabulary import AnyTokenizer, Token, Vocabulary
from .any_of import AnyOfFilter, opening
from .protocol import Int32Words, words_of


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
        return cls(_SchemaParser(schema if schema is None else _text(schema)))

    @classmethod
    def regex(cls, pattern: str) -> LMFormatEnforcer:
        """Text of which a regular expression matches the whole."""
        return cls(_RegexParser(pattern))

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> LMFEFilter:
        """As ``Specification.bind``."""
        return self._bound(tokenizer, vocab_size, after_space=False)

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        """As ``bind``, for the start of a text that loses its leading space."""
        vocabulary = Vocabulary.of(tokenizer)
        plain = self._bound(vocabulary, vocab_size, after_space=False)
        after_space = self._bound(vocabulary, vocab_size, after_space=True)
        return opening(plain, after_space, vocabulary, vocab_size)

    def _bound(self, tokenizer: AnyTokenizer, vocab_size: int, *, after_space: bool) -> LMFEFilter:
        vocabulary = Vocabulary.of(tokenizer)
        library = _library()
        data = vocabulary.derived(
            ("lm-format-enforcer", vocab_size), lambda: _data(library, vocabulary, vocab_size)
        )
        try:
            parser = self.make_parser()
            if after_space:
                parser = library.SequenceParser([library.StringParser(" "), parser])
            enforcer = library.TokenEnforcer(data, parser)
        except MlxgenError:
            raise
        except Exception as error:
            raise GrammarError(f"{self!r}: {type(error).__name__}: {error}") from error
        return LMFEFilter(enforcer, parser, vocabulary, vocab_size)


class LMFEFilter:
    """The running filter of ``LMFormatEnforcer``."""

    def __init__(self, enforcer: Any, parser: Any, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._enforcer = enforcer
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._parsers = [parser]

    def fill(self, row: Int32Words) -> bool:
        """As ``Filter.fill``."""
        enforcer = self._enforcer
        enforcer.prefix_states.clear()
        enforcer.root_parser = self._parsers[-1]
        allowed = enforcer.get_allowed_tokens([]).allowed_tokens
        row[:] = words_of(allowed, self._vocab_size)
        return True

    def advance(self, token: Token) -> None:
        """As ``Filter.advance``."""
        parser = self._parsers[-1]
        try:
            text = self._vocabulary.piece(token).decode()
        except UnicodeDecodeError:
            text = ""
        if not text or token in self._vocabulary.special:
            raise FilterError(f"lm-format-enforcer reads whole characters; token {token} has none")
        for character in text:
            if character not in parser.get_allowed_characters():
                raise FilterError(
                    f"lm-format-enforcer does not allow token {token} ({text!r}) here"
                )
            parser = parser.add_character(character)
        self._parsers.append(parser)

    def can_end(self) -> bool:
        """As ``Filter.can_end``."""
        return bool(self._parsers[-1].can_end())

    def reset(self) -> None:
        """As ``Filter.reset``."""
        self.rewind(0)

    def rewind(self, to: int) -> None:
        """Back to the state after the first ``to`` tokens."""
        del self._parsers[to + 1 :]

    def fork(self) -> LMFEFilter:
        """An independent copy. It shares the enforcer, which holds no state between calls."""
        twin = LMFEFilter(self._enforcer, self._parsers[-1], self._vocabulary, self._vocab_size)
        twin._parsers = self._parsers.copy()
        return twin


# ---- the package ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SchemaParser:
    schema: str | None

    def __call__(self) -> Any:
        schema = None if self.schema is None else json.loads(self.schema)
        return _library().JsonSchemaParser(schema)


@dataclass(frozen=True, slots=True)
class _RegexParser:
    pattern: str

    def __call__(self) -> Any:
        return _library().RegexParser(self.pattern)


def _text(schema: Mapping[str, Any] | str) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


def _library() -> Any:
    try:
        import lmformatenforcer
    except ImportError as error:
        raise OptionError(
            "filters", "LMFormatEnforcer needs lm-format-enforcer: pip install 'mlxgen[lmfe]'"
        ) from error
    return lmformatenforcer


def _data(library: Any, vocabulary: Vocabulary, vocab_size: int) -> Any:
    tokens = []
    for token in range(min(vocab_size, vocabulary.size)):
        if vocabulary.is_ordinary(token):
            try:
                tokens.append((token, vocabulary.piece(token).decode(), True))
            except UnicodeDecodeError:
                continue
    # Every piece is the token's own text whatever precedes it, so nothing needs decoding.
    return library.TokenEnforcerTokenizerData(
        tokens, vocabulary.decode, sorted(vocabulary.eos), False, vocab_size
    )
