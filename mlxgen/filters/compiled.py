"""Grammars compiled by llguidance, and the tokenizer for which they are compiled.

Compiled grammars are kept and copied: a copy takes microseconds, compiling takes milliseconds
or more. Copies share the automaton that grows as masks are computed, so a second row with the
same schema starts warm. Masks are computed one after the other: one takes 5 to 30 µs, and handing
it to a thread about as much.

A shared automaton only grows, and has a limit. If the mask of one copy meets the limit, that
copy has an error, and the others refuse valid tokens without an error; if a look ahead meets
it, there is no error at all. So refusals are checked: ``proves_spent`` asks a new copy for a
token that is certainly allowed. An automaton that is spent is so for all copies, and the
grammar is compiled anew; that also happens after ``_COPIES``, to avoid this case. The limits
of the parser are different: a copy that meets one has its own error, and would meet it again.

Invariant: what ``GrammarEngine.compiled`` returns is at its start, without error and not spent.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from weakref import ref

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ..errors import GrammarError, PromptError
from ..recent import Recent
from ..tokens.vocabulary import AnyTokenizer, Token, Vocabulary
from .protocol import Int32Words, tokens_of, word_count
from .reasons import readable
from .schema.fitting import Check

_KEPT = 32  # compiled grammars for one vocabulary
_COPIES = 512  # copies of one before it is compiled anew
_TEXTS = 4096  # short forced texts whose tokens are remembered
_SHORT = 256  # characters of a short text, at most
_LONG_TEXTS = 16  # longer texts whose tokens are remembered; they may be as long as a request
_WALK = 8  # tokens of a trial text
_STEADY = 300  # tokens of one that says the same again and again, where repetitions are counted
_COUNTED = re.compile(r"\{\d*,\d*\}")
_RUN = 1024  # forced tokens to look at; a grammar may force text without end
_ITEMS = 10_000  # the parser's items in a row; an object takes four for each optional property
_LIMITS = LLParserLimits(verbose_errors=False, max_items_in_row=_ITEMS)
_INNER = "mlxgen_inner"
_TOO_LARGE = ("too many expressions", "too big", "too large")
TOO_LARGE = (
    "the grammar engine cannot follow it: it is too large; use fewer or shorter repetitions, "
    "alternatives and rules"
)
_BROKEN = "the grammar engine fails on it by an error of its own; write it in another way"
_TOO_MANY_ITEMS = re.compile(r"row has (\d+) items; max is (\d+)")


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar as llguidance takes it, its name in messages, and how its texts are checked."""

    text: str
    name: str
    skips_space: bool = False  # whether its texts may begin with a space that means nothing
    check: Check | None = None

    @classmethod
    def of_lark(cls, lark: str, name: str, check: Check | None = None) -> Grammar:
        return cls(json.dumps({"grammars": [{"lark_grammar": lark}]}), name, check=check)

    @classmethod
    def of_regex(cls, pattern: str, name: str) -> Grammar:
        return cls(LLMatcher.grammar_from_regex(pattern), name)

    def after(self, lark: str, *, skips_space: bool = False) -> Grammar:
        """This grammar after what the Lark expression ``lark`` matches."""
        inner = json.loads(self.text)["grammars"]
        outer = {"lark_grammar": f"start: {lark} @{_INNER}"}
        inner[0] = {**inner[0], "name": _INNER}
        text = json.dumps({"grammars": [outer, *inner]})
        return replace(self, text=text, skips_space=skips_space)


@dataclass(slots=True)
class Compiled:
    """A compiled grammar, of which every use gets a copy."""

    grammar: Grammar
    pristine: LLMatcher
    first: Sequence[Token]  # a token that may come first, if there is one
    copies: int = 0
    spent: bool = False  # the automaton that its copies share has met its limit

    def matcher(self) -> LLMatcher:
        """A matcher at the start of the grammar."""
        self.copies += 1
        return self.pristine.deep_copy()

    def proves_spent(self) -> bool:
        """Whether the shared automaton has met its limit; takes some 10 µs."""
        if self.first and not self.spent:
            self.spent = not self.pristine.deep_copy().try_consume_tokens(list(self.first))
        return self.spent


class GrammarEngine:
    """llguidance for one vocabulary, and the grammars compiled for it."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self.vocabulary = vocabulary
        eos = sorted(vocabulary.eos)
        size = max(vocab_size, vocabulary.size, *(token + 1 for token in eos), 0)
        if not eos:  # llguidance wants one: an id that no token has
            eos = [size]
            size += 1
        self._ends = frozenset(eos)
        self.size = size
        self.words = word_count(size)
        # llguidance ignores this size for tokenizers of this kind, so the pieces are padded.
        tokens = _Tokens(vocabulary, size, eos[0])
        self.tokenizer = LLTokenizer(tokens, n_vocab=size, eos_token=eos)  # type: ignore[arg-type]
        assert self.tokenizer.vocab_size == size
        # Or why one cannot be met, as finding that out takes as long as compiling
        self._kept: Recent[str, Compiled | str] = Recent(_KEPT)

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, vocab_size: int) -> GrammarEngine:
        """The engine of a tokenizer, made once for each width of the logits."""
        vocabulary = Vocabulary.of(tokenizer)
        size = max(vocab_size, vocabulary.size)
        return vocabulary.derived(("llguidance", size), lambda: cls(vocabulary, size))

    def compiled(self, grammar: Grammar) -> Compiled:
        """The grammar, ready for use. GrammarError if it cannot be met."""
        kept = self._kept.get(grammar.text, lambda: self._compile_or_why(grammar))
        if isinstance(kept, str):
            raise GrammarError(kept)
        if kept.spent or kept.copies >= _COPIES:
            self._kept.forget(grammar.text)
            kept = self._compile(grammar)
            self._kept.get(grammar.text, lambda: kept)
        return kept

    def _compile_or_why(self, grammar: Grammar) -> Compiled | str:
        try:
            return self._compile(grammar)
        except GrammarError as error:
            return str(error)

    def _compile(self, grammar: Grammar) -> Compiled:
        try:
            return self._tried(grammar)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # which is no Exception
                raise
            raise GrammarError(f"{grammar.name}: {_BROKEN}") from None

    def _tried(self, grammar: Grammar) -> Compiled:
        matcher = LLMatcher(self.tokenizer, grammar.text, log_level=0, limits=_LIMITS)
        first = self._check(matcher, grammar)
        trial = matcher.deep_copy()
        run = trial.compute_ff_tokens()
        if run:  # a grammar may begin with text that leads to a dead end
            trial.try_consume_tokens(run[:_RUN])
            self._check(trial, grammar)
        self._follow(trial, grammar, _WALK, None)
        letter = self.vocabulary.token_of(b"a")
        if letter is not None and _COUNTED.search(grammar.text):  # counts within counts grow by it
            self._follow(matcher.deep_copy(), grammar, _STEADY, letter)
        return Compiled(grammar, matcher, first)

    def _follow(
        self, matcher: LLMatcher, grammar: Grammar, count: int, token: Token | None
    ) -> None:
        """Tries a text of ``count`` tokens, all of them this one or any. GrammarError if the engine
        cannot follow it."""
        row = np.zeros(self.words, dtype=np.int32)
        draw = random.Random(0)
        for _ in range(count):
            matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if matcher.is_error():
                break
            some = [token] if token is not None else self._ordinary(row)
            if not some or not matcher.try_consume_tokens([draw.choice(some)]):
                break
        if matcher.is_error() and not is_dead_end(matcher):
            raise GrammarError(f"{grammar.name}: {reason_of(matcher)}")

    def _check(self, matcher: LLMatcher, grammar: Grammar) -> Sequence[Token]:
        """One of the allowed tokens, if there are any. GrammarError if no text is possible."""
        if not matcher.is_error():
            row = np.zeros(self.words, dtype=np.int32)
            matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if not matcher.is_error():
                return self._ordinary(row)[:1]
        reason = "no text satisfies it" if is_dead_end(matcher) else reason_of(matcher)
        raise GrammarError(f"{grammar.name}: {reason}")

    def _ordinary(self, row: Int32Words) -> list[Token]:
        return [token for token in tokens_of(row).tolist() if token not in self._ends]


def reason_of(matcher: LLMatcher) -> str:
    """The engine's reason for an error, without its dump of states."""
    reason = matcher.get_error()
    for mark in ("<non-verbose/>", "<state>", "<backtrace>"):
        reason = reason.partition(mark)[0]
    if any(sign in reason for sign in _TOO_LARGE):
        return TOO_LARGE
    if "panic" in reason:
        return TOO_LARGE if ".len() <" in reason else _BROKEN
    too_many = _TOO_MANY_ITEMS.search(reason)
    if too_many:
        return (
            f"too much may come next in one place ({too_many[1]} items of the parser; at most "
            f"{too_many[2]} fit); use fewer alternatives or optional properties there"
        )
    return readable(reason)


def has_met_shared_limit(matcher: LLMatcher) -> bool:
    """Whether the error is that the shared automaton has met its limit."""
    return matcher.get_error().startswith("lexer error")


def is_dead_end(matcher: LLMatcher) -> bool:
    """Whether the error is only that no token may follow and the text may not end."""
    return matcher.get_error().startswith("NoExtension")


class _Tokens:
    """A vocabulary with what llguidance asks of a tokenizer.

    llguidance holds it where Python's collector cannot see it, and the vocabulary keeps the engine:
    so it refers to the vocabulary weakly, or neither would ever be freed.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, size: int, eos: Token) -> None:
        self.eos_token_id = eos
        self.special_token_ids = sorted(vocabulary.special)
        holes = [b""] * (size - vocabulary.size)
        self.tokens = [*vocabulary.pieces, *holes]
        of = ref(vocabulary)
        self._short = lru_cache(_TEXTS)(lambda text: _spelled(of(), text))
        self._long = lru_cache(_LONG_TEXTS)(lambda text: _spelled(of(), text))

    def __call__(self, text: str) -> list[Token]:
        """The tokens of a text in the middle of a sequence.

        They are never special: llguidance would force special tokens if a grammar has their
        text as a literal, and then refuse them.
        """
        return list(self._short(text) if len(text) <= _SHORT else self._long(text))


def _spelled(vocabulary: Vocabulary | None, text: str) -> tuple[Token, ...]:
    assert vocabulary is not None, "whoever follows a grammar holds its vocabulary"
    try:
        return tuple(vocabulary.continue_with(text.encode()))
    except PromptError:
        return ()
