"""LMFormatEnforcer: constraints of the optional package lm-format-enforcer.

Its parsers are immutable and read characters, so only tokens that are whole characters are
allowed. Its enforcer remembers every history that it was asked about; here it is asked about one
parser at a time, without a history, so it stays small.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from ..errors import FilterError, GrammarError, MlxgenError, OptionError
from ..tokens.vocabulary import AnyTokenizer, Token, Vocabulary
from .any_of import AnyOfFilter, opening
from .protocol import Int32Words, words_of
from .states import StatesFilter


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

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> StatesFilter:
        """As ``Specification.bind``."""
        vocabulary = Vocabulary.of(tokenizer)
        library = _library()
        data = vocabulary.derived(
            ("lm-format-enforcer", vocab_size), lambda: _data(library, vocabulary, vocab_size)
        )
        try:
            parser = self.make_parser()
            enforcer = library.TokenEnforcer(data, parser)
        except MlxgenError:
            raise
        except Exception as error:
            raise GrammarError(f"{self!r}: {type(error).__name__}: {error}") from error
        parsers = _Parsers(enforcer, vocabulary, vocab_size)
        return StatesFilter([parser], parsers.row, parsers.after, methodcaller("can_end"))

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        """As ``bind``, for the start of a text that loses its leading space."""

        def parser_after_space() -> Any:
            library = _library()
            return library.SequenceParser([library.StringParser(" "), self.make_parser()])

        vocabulary = Vocabulary.of(tokenizer)
        plain = self.bind(vocabulary, vocab_size)
        after_space = LMFormatEnforcer(parser_after_space).bind(vocabulary, vocab_size)
        return opening(plain, after_space, vocabulary, vocab_size)


class _Parsers:
    """What may follow a parser."""

    def __init__(self, enforcer: Any, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._enforcer = enforcer
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size

    def row(self, parser: Any) -> Int32Words:
        enforcer = self._enforcer
        enforcer.prefix_states.clear()
        enforcer.root_parser = parser
        return words_of(enforcer.get_allowed_tokens([]).allowed_tokens, self._vocab_size)

    def after(self, parser: Any, token: Token) -> Any:
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
        return parser


# ---- the package ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Make:
    """A function that makes a parser of the package; equal to others that make the same."""

    parser: str
    argument: str  # as JSON

    def __call__(self) -> Any:
        return getattr(_library(), self.parser)(json.loads(self.argument))


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
