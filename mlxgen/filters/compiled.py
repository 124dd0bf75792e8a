"""Grammars compiled by llguidance, and the tokenizer that they are compiled for.

Owns the making of matchers. Must never know schemas, how grammars are written, or what
becomes of a matcher.

Compiled grammars are kept and copied: a copy takes microseconds where compiling takes
milliseconds or more, and copies share the automaton that masks build as they go, so that a
second row with the same schema starts warm. The price is that copies take turns in it. Measured
on two cores, walking through JSON documents in the executor, copies were no slower than
matchers built separately, and alone they were 1.3 to 1.6 times as fast; so forks and rows of one
specification share.

A shared automaton only grows, and has a limit. When a mask of one copy meets it, that copy has
an error, and the others refuse good tokens without one; when a look ahead meets it, there is
no error at all. So refusals are doubted: ``proves_spent`` asks a new copy for a token that is
surely allowed. What is spent is so for all who share it, and the grammar is compiled anew;
and before it comes to that, after ``_COPIES``. The parser's limits are another matter: a copy
that meets one has an error of its own, and would meet it again.

Compiling may take a second, so an engine that runs many rows in one thread asks for it to be
done ``ahead``: whoever binds the second row of a grammar then compiles a spare of it too, and a
row that finds the automaton spent takes the spare, or fails. Only ``compiled`` compiles then.

Invariant: what ``Engine.compiled`` returns is at its start, without error and not spent.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from ..errors import FilterError, GrammarError, PromptError
from ..tokens.vocabulary import AnyTokenizer, Token, Vocabulary
from .protocol import tokens_of, word_count
from .reasons import readable
from .recent import Recent

_KEPT = 32  # compiled grammars for one vocabulary
_COPIES = 512  # copies of one before it is compiled anew
_TEXTS = 4096  # short forced texts whose tokens are remembered
_SHORT = 256  # characters of these
_LONG_TEXTS = 16  # the same of longer ones, which may be as long as a request
_WALK = 8  # tokens of a text that is tried
_RUN = 1024  # forced tokens to look at; a grammar may force text without end
_ITEMS = 10_000  # the parser's, in a row; an object takes four for each optional property
_LIMITS = LLParserLimits(verbose_errors=False, max_items_in_row=_ITEMS)
_INNER = "mlxgen_inner"
_CROWDED = re.compile(r"row has (\d+) items; max is (\d+)")


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar as llguidance takes it, and the name it goes by in messages."""

    text: str
    name: str

    @classmethod
    def of_lark(cls, lark: str, name: str) -> Grammar:
        return cls(json.dumps({"grammars": [{"lark_grammar": lark}]}), name)

    @classmethod
    def of_regex(cls, pattern: str, name: str) -> Grammar:
        return cls(LLMatcher.grammar_from_regex(pattern), name)

    @classmethod
    def of_json_schema(cls, schema: Mapping[str, Any], name: str) -> Grammar:
        return cls(json.dumps({"grammars": [{"json_schema": schema}]}), name)

    def behind(self, lark: str) -> Grammar:
        """The same grammar behind what the Lark expression ``lark`` matches."""
        inner = json.loads(self.text)["grammars"]
        outer = {"lark_grammar": f"start: {lark} @{_INNER}"}
        inner[0] = {**inner[0], "name": _INNER}
        return Grammar(json.dumps({"grammars": [outer, *inner]}), self.name)


@dataclass(slots=True)
class Compiled:
    """A compiled grammar: copied for every use, and itself never used."""

    grammar: Grammar
    pristine: LLMatcher
    first: Sequence[Token]  # a token that may come first, if there is one
    copies: int = 0
    spent: bool = False  # the automaton that its copies share has met its limit
    spare: Compiled | None = None  # the same grammar with an automaton of its own

    def matcher(self) -> LLMatcher:
        """A matcher at the start of the grammar."""
        self.copies += 1
        return self.pristine.deep_copy()

    def proves_spent(self) -> bool:
        """Whether the shared automaton has met its limit; some 10 µs."""
        if self.first and not self.spent:
            self.spent = not self.pristine.deep_copy().try_consume_tokens(list(self.first))
        return self.spent


class Engine:
    """One vocabulary as llguidance sees it, and the grammars compiled for it."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self.vocabulary = vocabulary
        eos = sorted(vocabulary.eos)
        size = max(vocab_size, vocabulary.size, *(token + 1 for token in eos), 0)
        if not eos:  # it wants one: an id that nothing else has
            eos = [size]
            size += 1
        self._ends = frozenset(eos)
        self.size = size
        self.words = word_count(size)
        # The size given here is ignored for tokenizers of this kind; the pieces are padded.
        tokens = _Tokens(vocabulary, size, eos[0])
        self.tokenizer = LLTokenizer(tokens, n_vocab=size, eos_token=eos)  # type: ignore[arg-type]
        assert self.tokenizer.vocab_size == size
        self._kept: Recent[str, Compiled] = Recent(_KEPT)
        self._executors: Recent[int, LLExecutor] = Recent(1)  # its own default is 80 % of the cores
        self.compiles_ahead = False

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, vocab_size: int) -> Engine:
        """The engine of a tokenizer, made once for each width of the logits."""
        vocabulary = Vocabulary.of(tokenizer)
        size = max(vocab_size, vocabulary.size)
        return vocabulary.derived(("llguidance", size), lambda: cls(vocabulary, size))

    def executor(self, threads: int) -> LLExecutor:
        """Threads for many masks at once."""
        return self._executors.get(threads, lambda: LLExecutor(threads))

    def compile_ahead(self) -> None:
        """From now on compile only where something is bound, never for a row that runs."""
        self.compiles_ahead = True

    def compiled(self, grammar: Grammar) -> Compiled:
        """The grammar, ready for use. GrammarError if it cannot be met."""
        kept = self._kept.get(grammar.text, lambda: self._compile(grammar))
        if kept.spent or kept.copies >= _COPIES:
            self._kept.forget(grammar.text)
            kept = self._kept.get(grammar.text, lambda: self._compile(grammar))
        if self.compiles_ahead and kept.copies and kept.spare is None:
            kept.spare = self._compile(grammar)
        return kept

    def renewed(self, spent: Compiled) -> Compiled:
        """The same grammar with another automaton, for a row that runs.

        FilterError where there is none and this is no place to compile one.
        """
        grammar = spent.grammar
        if not self.compiles_ahead:
            return self.compiled(grammar)
        if spent.spare is None or spent.spare.spent:
            raise FilterError(
                f"{grammar.name}: what it allows takes too many states to follow; make it simpler"
            )
        spare = spent.spare
        self._kept.forget(grammar.text)
        return self._kept.get(grammar.text, lambda: spare)

    def _compile(self, grammar: Grammar) -> Compiled:
        matcher = LLMatcher(self.tokenizer, grammar.text, log_level=0, limits=_LIMITS)
        first = self._check(matcher, grammar)
        trial = matcher.deep_copy()
        run = trial.compute_ff_tokens()
        if run:  # a grammar may begin with text that leads nowhere
            trial.try_consume_tokens(run[:_RUN])
            self._check(trial, grammar)
        self._walk(trial, grammar)
        return Compiled(grammar, matcher, first)

    def _walk(self, matcher: LLMatcher, grammar: Grammar) -> None:
        """Go on as some text would. GrammarError if that is more than the engine can follow."""
        row = np.zeros(self.words, dtype=np.int32)
        draw = random.Random(0)
        for _ in range(_WALK):
            matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            allowed = [token for token in tokens_of(row).tolist() if token not in self._ends]
            if matcher.is_error() or not allowed:
                break
            matcher.try_consume_tokens([draw.choice(allowed)])
        if matcher.is_error() and not is_dead_end(matcher):
            raise GrammarError(f"{grammar.name}: {reason_of(matcher)}")

    def _check(self, matcher: LLMatcher, grammar: Grammar) -> Sequence[Token]:
        """One of the tokens that are allowed, if any is. GrammarError if none can be."""
        if not matcher.is_error():
            row = np.zeros(self.words, dtype=np.int32)
            matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if not matcher.is_error():
                return [int(token) for token in tokens_of(row) if token not in self._ends][:1]
        reason = "no text satisfies it" if is_dead_end(matcher) else reason_of(matcher)
        raise GrammarError(f"{grammar.name}: {reason}")


def reason_of(matcher: LLMatcher) -> str:
    """The engine's reason for an error, without its dump of states."""
    reason = matcher.get_error()
    for mark in ("<non-verbose/>", "<state>"):
        reason = reason.partition(mark)[0]
    crowded = _CROWDED.search(reason)
    if crowded:
        return (
            f"too much may come next in one place ({crowded[1]} items of the parser, where "
            f"{crowded[2]} are the most); have fewer alternatives or optional properties there"
        )
    return readable(reason)


def has_met_shared_limit(matcher: LLMatcher) -> bool:
    """Whether the error is that the automaton, which copies share, has met its limit."""
    return matcher.get_error().startswith("lexer error")


def is_dead_end(matcher: LLMatcher) -> bool:
    """Whether the error is only that nothing may follow, and the text may not end."""
    return matcher.get_error().startswith("NoExtension")


class _Tokens:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, size: int, eos: Token) -> None:
        self.eos_token_id = eos
        self.special_token_ids = sorted(vocabulary.special)
        holes = [b""] * (size - vocabulary.size)
        self.tokens = [*vocabulary.pieces, *holes]
        self._short = lru_cache(_TEXTS)(lambda text: _spelled(vocabulary, text))
        self._long = lru_cache(_LONG_TEXTS)(lambda text: _spelled(vocabulary, text))

    def __call__(self, text: str) -> list[Token]:
        """Tokens of text in the middle of a sequence.

        Never special ones: llguidance would force them where a grammar has their text as a
        literal, and then refuse them.
        """
        return list(self._short(text) if len(text) <= _SHORT else self._long(text))


def _spelled(vocabulary: Vocabulary, text: str) -> tuple[Token, ...]:
    try:
        return tuple(vocabulary.continue_with(text.encode()))
    except PromptError:
        return ()
