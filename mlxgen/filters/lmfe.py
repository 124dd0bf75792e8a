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

from ..errors import FilterError, OptionError
from ..tokens.vocabulary import Token, Vocabulary
from .adapter import Adapter, StatesFilter
from .protocol import Int32Words, words_of


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

    def _after_space(self) -> LMFormatEnforcer:
        def parser() -> Any:
            library = self._library()
            return library.SequenceParser([library.StringParser(" "), self.make_parser()])

        return LMFormatEnforcer(parser)

    def _states(self, vocabulary: Vocabulary, vocab_size: int) -> StatesFilter:
        library = self._library()
        data = vocabulary.derived(
            ("lm-format-enforcer", vocab_size), lambda: _data(library, vocabulary, vocab_size)
        )
        parser = self.make_parser()
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


def _data(library: Any, vocabulary: Vocabulary, vocab_size: int) -> Any:
    ordinary = filter(vocabulary.is_ordinary, range(min(vocab_size, vocabulary.size)))
    tokens = [(token, text, True) for token in ordinary if (text := _text(vocabulary, token))]
    # Every piece is the token's own text whatever precedes it, so nothing needs decoding.
    return library.TokenEnforcerTokenizerData(
        tokens, vocabulary.decode, sorted(vocabulary.eos), False, vocab_size
    )
