"""Specifications that are grammars: ``Regex``, ``Lark``, ``Choice``, ``Substring``.

Owns how each is written for the grammar engine. Must never know how the engine runs it.

All of them constrain the whole generated text: it ends where they can end. They are frozen,
cheap to make and to bind again; a grammar that cannot be compiled is a GrammarError of
``bind``, with the engine's reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..errors import GrammarError, OptionError
from ..tokens.vocabulary import AnyTokenizer, Vocabulary
from .compiled import Engine, Grammar
from .first_token import FirstTokenFilter, opening
from .matcher import GrammarFilter
from .protocol import Filter
from .verbose import expanded

_FLAGS = {re.IGNORECASE: "i", re.DOTALL: "s"}
_WITHOUT_MEANING = re.UNICODE | re.DEBUG


@dataclass(frozen=True, slots=True, init=False)
class Regex:
    """Text that a regular expression matches as a whole.

    The syntax is that of Rust's ``regex`` crate: no look-around, no back references. The verbose
    mode is Python's, though. Of a compiled expression the flags I, S and X are taken over; A and
    M, which would change what it means, are an OptionError.
    """

    pattern: str

    by_bytes: ClassVar[bool] = True

    def __init__(self, pattern: str | re.Pattern[str]) -> None:
        object.__setattr__(self, "pattern", _pattern(pattern))

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> GrammarFilter:
        """As ``Specification.bind``."""
        return bound(self._grammar(), tokenizer, vocab_size)

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> Filter:
        """As ``bind``, for the start of a text that loses its leading space."""
        return bound_opening(self._grammar(), tokenizer, vocab_size)

    def _grammar(self) -> Grammar:
        return Grammar.of_regex(self.pattern, _short(f"Regex({self.pattern!r})"))


@dataclass(frozen=True, slots=True)
class Lark:
    """Text that a grammar in llguidance's dialect of Lark derives from ``start``.

    Tokens are written ``<[id]>``, or ``<name>`` for added tokens. A quoted literal is always
    text, spelled in ordinary tokens even where it is the text of a special one. Free text
    that ends in a marker must be lazy (``text[lazy]: /(.|\\n)*<end>/``), or it swallows the
    marker. ``max_tokens=`` and ``stop=`` work, but make every rewind a replay.
    """

    grammar: str

    by_bytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.grammar, str):
            raise OptionError(
                "filters", f"Lark takes the grammar as a string, not {self.grammar!r}"
            )

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> GrammarFilter:
        """As ``Specification.bind``."""
        return bound(self._grammar(tokenizer), tokenizer, vocab_size)

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> Filter:
        """As ``bind``, for the start of a text that loses its leading space."""
        return bound_opening(self._grammar(tokenizer), tokenizer, vocab_size)

    def _grammar(self, tokenizer: AnyTokenizer) -> Grammar:
        text = _with_token_ids(self.grammar, Vocabulary.of(tokenizer))
        return Grammar.of_lark(text, _short(f"Lark({self.grammar!r})"))


@dataclass(frozen=True, slots=True, init=False)
class Choice:
    """Exactly one of several texts."""

    options: tuple[str, ...]

    by_bytes: ClassVar[bool] = True

    def __init__(self, options: Iterable[str]) -> None:
        if isinstance(options, str):
            raise OptionError("filters", "Choice takes a list of strings, not one string")
        if not isinstance(options, Iterable):
            raise OptionError("filters", f"Choice takes a list of strings, not {options!r}")
        kept = tuple(dict.fromkeys(options))
        if not kept:
            raise OptionError("filters", "Choice needs at least one string")
        for option in kept:
            _check_text("Choice", option)
        object.__setattr__(self, "options", kept)

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> GrammarFilter:
        """As ``Specification.bind``."""
        return bound(self._grammar(), tokenizer, vocab_size)

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> Filter:
        """As ``bind``, for the start of a text that loses its leading space."""
        return bound_opening(self._grammar(), tokenizer, vocab_size)

    def _grammar(self) -> Grammar:
        # One terminal, so that the engine sees one automaton however many options there are.
        lark = "start: OPTION\nOPTION: " + " | ".join(map(_quoted, self.options))
        return Grammar.of_lark(lark, _short(f"Choice({list(self.options)!r})"))


@dataclass(frozen=True, slots=True)
class Substring:
    """A passage copied from ``text``: any run of its words or of its characters.

    The empty passage is one only with ``allow_empty``.
    """

    text: str
    by: Literal["words", "chars"] = "words"
    allow_empty: bool = False

    by_bytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_text("Substring", self.text)
        if not self.text:
            raise OptionError("filters", "Substring needs a text to copy from")
        if self.by not in ("words", "chars"):
            raise OptionError("filters", f"Substring's by is 'words' or 'chars', not {self.by!r}")

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> GrammarFilter:
        """As ``Specification.bind``."""
        return bound(self._grammar(), tokenizer, vocab_size)

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> Filter:
        """As ``bind``, for the start of a text that loses its leading space."""
        return bound_opening(self._grammar(), tokenizer, vocab_size)

    def _grammar(self) -> Grammar:
        passage = f"%regex {json.dumps({f'substring_{self.by}': self.text})}"
        some = "" if self.allow_empty else " & /(.|\\n)+/"
        lark = f"start: PASSAGE\nPASSAGE: {passage}{some}"
        return Grammar.of_lark(lark, _short(f"Substring({self.text!r})"))


# ---- shared with other grammar specifications ----------------------------------------------


def bound(grammar: Grammar, tokenizer: AnyTokenizer, vocab_size: int) -> GrammarFilter:
    """A running filter. GrammarError if the grammar cannot be met."""
    return GrammarFilter(grammar, Engine.of(tokenizer, vocab_size), vocab_size)


def bound_opening(
    grammar: Grammar, tokenizer: AnyTokenizer, vocab_size: int
) -> FirstTokenFilter | GrammarFilter:
    """The same, for the start of a text that loses its leading space."""
    behind_grammar = grammar.behind('" "')
    try:
        plain = bound(grammar, tokenizer, vocab_size)
    except GrammarError as error:
        try:  # some vocabularies have words only with the space before them
            return bound(behind_grammar, tokenizer, vocab_size)
        except GrammarError:
            raise error from None
    try:
        behind_space = bound(behind_grammar, tokenizer, vocab_size)
    except GrammarError:  # and some have no space at all
        return plain
    return opening(plain, behind_space, Vocabulary.of(tokenizer), vocab_size)


def _short(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:76]}...)"


def _pattern(pattern: str | re.Pattern[str]) -> str:
    if isinstance(pattern, str):
        return expanded(pattern)
    if not isinstance(pattern, re.Pattern) or not isinstance(pattern.pattern, str):
        raise OptionError("filters", f"Regex takes a string or a compiled one, not {pattern!r}")
    flags = re.RegexFlag(pattern.flags) & ~_WITHOUT_MEANING
    text = expanded(pattern.pattern, verbose=bool(flags & re.VERBOSE))
    letters = "".join(letter for flag, letter in _FLAGS.items() if flags & flag)
    for known in (*_FLAGS, re.VERBOSE):
        flags &= ~known
    if flags:
        raise OptionError("filters", f"Regex does not know the flags {flags!r} of {pattern!r}")
    return f"(?{letters}:{text})" if letters else text


def _check_text(name: str, text: str) -> None:
    if not isinstance(text, str):
        raise OptionError("filters", f"{name} takes strings, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OptionError("filters", f"{name}: {text!r} is not valid text: {error}") from error


def _quoted(text: str) -> str:
    """A string literal of Lark."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


_LARK_PARTS = re.compile(
    r"""
    "(?:\\.|[^"\\\n])*"                  # a literal, or a string inside embedded JSON
    | //[^\n]*                           # a comment
    | /(?:\\.|[^/\\\n])+/[imslux]*       # an expression
    | <(?P<name>[^<>\[\]"\s]+)>          # a token's name
    """,
    re.VERBOSE,
)


def _with_token_ids(lark: str, vocabulary: Vocabulary) -> str:
    """``<name>`` written ``<[id]>`` for every added token; other names are left alone."""

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        token = ids.get(f"<{name}>".encode()) if name else None
        return match[0] if token is None else f"<[{token}]>"

    ids = {vocabulary.piece(token): token for token in vocabulary.added}
    return _LARK_PARTS.sub(replaced, lark)
