"""Filters from the parsers of lm-format-enforcer; the package is optional.

They read characters, so only tokens of whole characters are allowed. A parser never changes, so a
rewind only drops the latest ones. The library's enforcer remembers every history that it was asked
about; here it is asked about one parser at a time, without a history, so it stays small.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import FilterError, GrammarError, OptionError
from ..forks import forked
from ..tokens import AnyTokenizer, Token, Vocabulary
from .engine import shortened
from .protocol import Int32Words, optional, words_of


@dataclass(frozen=True, slots=True)
class LMFormatEnforcer:
    """Text that a character-level parser of lm-format-enforcer accepts.

    ``make_parser`` returns a new parser, once for each binding, as in ``LMFormatEnforcer(lambda:
    JsonSchemaParser(schema))``; ``.json_schema(schema)`` and ``.regex(pattern)`` make the two most
    common ones.
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
        """Text that a regular expression matches as a whole."""
        return cls(_Make("RegexParser", json.dumps(pattern)))

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int, *, opens: bool = False) -> _Filter:
        """As ``Specification.bind``; ``opens``: for a text that loses its leading space."""
        library, vocabulary = optional("lmformatenforcer", "lmfe"), Vocabulary.of(tokenizer)

        def words() -> tuple[dict[Token, str], Any]:
            tokens = [t for t in vocabulary.starting_with(b"").tolist() if t < vocab_size]
            decoded = {t: vocabulary.piece(t).decode(errors="replace") for t in tokens}
            texts = {t: text for t, text in decoded.items() if "\ufffd" not in text}
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
            return _Filter(library.TokenEnforcer(data, parser), texts, vocab_size)
        except Exception as error:
            raise GrammarError(f"{shortened(repr(self))}: {error}") from error

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> _Filter:
        """As ``bind``, for the start of a text that loses its leading space."""
        return self.bind(tokenizer, vocab_size, opens=True)


@dataclass(frozen=True, slots=True)
class _Make:
    """A function that makes a parser of the package; equal to others that make the same."""

    parser: str
    argument: str  # as JSON

    def __call__(self) -> Any:
        return getattr(optional("lmformatenforcer", "lmfe"), self.parser)(json.loads(self.argument))


class _Filter:
    """The parsers before the first token and after each one."""

    def __init__(self, enforcer: Any, texts: Mapping[Token, str], vocab_size: int) -> None:
        self._enforcer, self._texts, self._vocab_size = enforcer, texts, vocab_size
        self._parsers = [enforcer.root_parser]

    def fill(self, row: Int32Words) -> bool:
        self._enforcer.prefix_states.clear()
        self._enforcer.root_parser = self._parsers[-1]
        row[:] = words_of(self._enforcer.get_allowed_tokens([]).allowed_tokens, self._vocab_size)
        return True

    def advance(self, token: Token) -> None:
        parser = self._parsers[-1]
        for character in self._texts.get(token, "\ufffd"):
            if character not in parser.get_allowed_characters():
                raise FilterError(f"lm-format-enforcer does not allow token {token} here")
            parser = parser.add_character(character)
        self._parsers.append(parser)

    def can_end(self) -> bool:
        return bool(self._parsers[-1].can_end())

    def reset(self) -> None:
        self.rewind(0)

    def rewind(self, to: int) -> None:
        del self._parsers[to + 1 :]

    def fork(self) -> _Filter:
        return forked(self, shared=("_enforcer", "_texts"))
