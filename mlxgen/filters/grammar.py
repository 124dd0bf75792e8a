"""Specifications that are grammars: ``Regex``, ``Lark``, ``Choice``, ``Substring``.

All of them constrain the whole generated text: it ends where they can end. They are frozen,
and cheap to make and to bind again. If a grammar cannot be compiled, ``bind`` raises a
GrammarError with the engine's reason.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from llguidance import LLMatcher

from ..errors import GrammarError, OptionError
from ..tokens.vocabulary import AnyTokenizer, Token, Vocabulary
from .engine import Grammar, GrammarEngine, shortened
from .matcher import GrammarFilter

_RULE = re.compile(r"^\s*[?!]*\w+(?:\[[^]\n]*\])?\s*:", re.MULTILINE)
_MOST_RULES = 2000  # in a chain of more, llguidance takes minutes to locate an error
_FLAGS = {re.IGNORECASE: "i", re.DOTALL: "s"}
_IGNORED = re.UNICODE | re.DEBUG


class OfGrammar(ABC):
    """A specification that is a grammar."""

    __slots__ = ()

    by_bytes: ClassVar[bool] = True

    @abstractmethod
    def _grammar(self, vocabulary: Vocabulary) -> Grammar: ...

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> GrammarFilter:
        """As ``Specification.bind``."""
        vocabulary = Vocabulary.of(tokenizer)
        return _running(self._grammar(vocabulary), vocabulary, vocab_size)

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> GrammarFilter:
        """As ``bind``, for the start of a text that loses its leading space.

        SentencePiece-style models begin their answer with a token such as ``▁{``: bytes `` {``,
        text ``{``. So a space may come before the specified text; and it must, if that text may
        itself begin with a space, which would be lost.
        """
        vocabulary = Vocabulary.of(tokenizer)
        grammar, space = self._grammar(vocabulary), vocabulary.token_of(b" ")
        if grammar.skips_space:
            return _running(grammar, vocabulary, vocab_size)
        running = _running(grammar.after("/ ?/"), vocabulary, vocab_size)
        if space is not None and running.validate([space, space]) == 2:
            running = _running(grammar.after('" "'), vocabulary, vocab_size)
        return running


def _running(grammar: Grammar, vocabulary: Vocabulary, vocab_size: int) -> GrammarFilter:
    return GrammarFilter(grammar, GrammarEngine.of(vocabulary, vocab_size), vocab_size)


@dataclass(frozen=True, slots=True, init=False)
class Regex(OfGrammar):
    """Text that a regular expression matches as a whole.

    The syntax is that of Rust's ``regex`` crate (no look-around, no back references). The flags I
    and S of a compiled expression are kept. A, M and X raise OptionError: the engine reads them
    differently from Python.
    """

    pattern: str

    def __init__(self, pattern: str | re.Pattern[str]) -> None:
        object.__setattr__(self, "pattern", _pattern(pattern))

    def _grammar(self, vocabulary: Vocabulary) -> Grammar:
        text = LLMatcher.grammar_from_regex(self.pattern)
        return Grammar(text, shortened(f"Regex({self.pattern!r})"))


@dataclass(frozen=True, slots=True)
class Lark(OfGrammar):
    """Text that a grammar in llguidance's dialect of Lark derives from ``start``.

    Tokens are written ``<[id]>``, or ``<name>`` for added tokens. A quoted literal is always
    text, spelled in ordinary tokens even if it is the text of a special one. Free text that
    ends with a marker must be lazy (``text[lazy]: /(.|\\n)*<end>/``), or it swallows the
    marker. ``max_tokens=`` works, but makes every rewind a replay; ``stop=`` is an OptionError,
    as it would hide text that was written: use ``suffix=``, or ``lazy``.
    """

    grammar: str

    def __post_init__(self) -> None:
        if not isinstance(self.grammar, str):
            raise OptionError("filters", f"Lark: expected a string, got {self.grammar!r}")
        if _STOP.search(_LARK_PARTS.sub("", self.grammar)):
            raise OptionError(
                "filters",
                "Lark: expected no stop= in the options of a rule, got one; use suffix= with the "
                "same text, or lazy and an expression that ends with it",
            )

    def _grammar(self, vocabulary: Vocabulary) -> Grammar:
        count = len(_RULE.findall(self.grammar))
        if count > _MOST_RULES:
            raise GrammarError(f"Lark: {count} rules, but at most {_MOST_RULES} are possible")
        text, named = _with_token_ids(self.grammar, vocabulary)
        made = Grammar.of_lark(text, shortened(f"Lark({self.grammar!r})"))
        return replace(made, named=named - vocabulary.special)


@dataclass(frozen=True, slots=True, init=False)
class Choice(OfGrammar):
    """Exactly one of several texts."""

    options: tuple[str, ...]

    def __init__(self, options: Iterable[str]) -> None:
        if isinstance(options, str) or not isinstance(options, Iterable):
            raise OptionError("filters", f"Choice: expected a list of strings, got {options!r}")
        kept = tuple(dict.fromkeys(options))
        if not kept:
            raise OptionError("filters", "Choice: expected at least one string, got none")
        for option in kept:
            _check_text("Choice", option)
        object.__setattr__(self, "options", kept)

    def _grammar(self, vocabulary: Vocabulary) -> Grammar:
        # One terminal, so that the engine sees one automaton for any number of options.
        lark = "start: OPTION\nOPTION: " + " | ".join(map(quoted, self.options))
        return Grammar.of_lark(lark, shortened(f"Choice({list(self.options)!r})"))


@dataclass(frozen=True, slots=True)
class Substring(OfGrammar):
    """A passage copied from ``text``: any run of its words or of its characters.

    An empty passage is allowed only with ``allow_empty``.
    """

    text: str
    by: Literal["words", "chars"] = "words"
    allow_empty: bool = False

    def __post_init__(self) -> None:
        _check_text("Substring", self.text)
        if not self.text:
            raise OptionError("filters", "Substring: expected a text to copy from, got ''")
        if self.by not in ("words", "chars"):
            raise OptionError(
                "filters", f"Substring: by: expected 'words' or 'chars', got {self.by!r}"
            )

    def _grammar(self, vocabulary: Vocabulary) -> Grammar:
        passage = f"%regex {json.dumps({f'substring_{self.by}': self.text})}"
        some = "" if self.allow_empty else " & /(.|\\n)+/"
        lark = f"start: PASSAGE\nPASSAGE: {passage}{some}"
        return Grammar.of_lark(lark, shortened(f"Substring({self.text!r})"))


def _pattern(pattern: str | re.Pattern[str]) -> str:
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(text, str):
        raise OptionError(
            "filters", f"Regex: expected a string or a compiled expression, got {pattern!r}"
        )
    _check_text("Regex", text)
    flags = re.RegexFlag(pattern.flags if isinstance(pattern, re.Pattern) else 0) & ~_IGNORED
    letters = "".join(letter for flag, letter in _FLAGS.items() if flags & flag)
    if others := flags & ~re.IGNORECASE & ~re.DOTALL:
        raise OptionError(
            "filters", f"Regex: expected the flags I and S, got {others!r} in {pattern!r}"
        )
    return f"(?{letters}:{text})" if letters else text


def _check_text(name: str, text: str) -> None:
    if not isinstance(text, str):
        raise OptionError("filters", f"{name}: expected a string, got {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OptionError("filters", f"{name}: {text!r} is not valid text: {error}") from error


def quoted(text: str) -> str:
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


_STOP = re.compile(r"^[ \t]*[?!]?[\w-]+[ \t]*\[[^\]]*\bstop\s*=", re.MULTILINE)
_IDS = re.compile(r"<\[\^?([\d,\s-]+)\]>")


def _with_token_ids(lark: str, vocabulary: Vocabulary) -> tuple[str, frozenset[Token]]:
    """The grammar with ``<[id]>`` in place of an added token's ``<name>``, other names unchanged;
    and all ids in it."""

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        token = ids.get(f"<{name}>".encode()) if name else None
        return match[0] if token is None else f"<[{token}]>"

    ids = {vocabulary.piece(token): token for token in vocabulary.added}
    lark = _LARK_PARTS.sub(replaced, lark)
    named = set[Token]()
    for match in _IDS.finditer(_LARK_PARTS.sub("", lark)):
        for token in map(int, re.findall(r"\d+", match[1])):
            if not vocabulary.has(token):
                raise GrammarError(
                    f"Lark: token {token} in {match[0]} is outside the vocabulary; expected 0 to "
                    f"{vocabulary.size - 1}"
                )
            named.add(token)
    return lark, frozenset(named)
