"""llguidance: the tokenizer it needs, the grammars compiled for it, and the running filter.

Owns every call into llguidance. Must never know schemas or how grammars are written.

Invariant: a matcher whose ``is_error()`` is true is never used again. Errors of llguidance are
permanent, and the mask is then end-of-sequence only, so it is asked after every call that may
fail; ids are checked for their range before it sees them, end tokens are never fed, and
tokens go in by ``try_consume_tokens``, which refuses without harm.

Compiled grammars are kept and copied: a copy takes microseconds where compiling takes
milliseconds or more, and copies share the automaton that masks build as they go, so that a
second row with the same schema starts warm. The price is that copies take turns in it. Measured
on two cores, walking through JSON documents in the executor, copies were no slower than
matchers built separately, and alone they were 1.3 to 1.6 times as fast; so forks and rows of one
specification share. As a shared automaton only grows, and has a limit, a compiled grammar is
replaced after ``_COPIES`` copies, and a filter that meets a limit is built again on its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from ..errors import FilterError, GrammarError, PromptError
from ..tokens import Token, Vocabulary
from .protocol import AnyTokenizer, Int32Words, word_count
from .recent import Recent

_KEPT = 32  # compiled grammars for one vocabulary
_COPIES = 512  # copies of one before it is compiled anew
_TEXTS = 4096  # forced texts whose tokens are remembered
_LIMITS = LLParserLimits(verbose_errors=False)
_RUN = 1024  # tokens looked at in one go; a grammar may force text without end


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


_INNER = "mlxgen_inner"


class GrammarFilter:
    """The running filter of a grammar: rewinds, forks, forces and validates natively."""

    def __init__(self, grammar: Grammar, engine: Engine, vocab_size: int) -> None:
        self._grammar = grammar
        self._engine = engine
        self._vocab_size = vocab_size
        self._eos = engine.vocabulary.eos
        self._limit = min(vocab_size, engine.vocabulary.size)
        self._fed: list[Token] = []
        self._filled: Int32Words | None = None  # a mask that was computed elsewhere
        self._row: Int32Words | None = None  # the row asked for last, and where its words lie
        self._buffer: Int32Words
        self._pointer = self._bytes = 0
        self.matcher = engine.matcher(grammar)

    @property
    def engine(self) -> Engine:
        """The tokenizer that it runs on; masks of one engine have one width."""
        return self._engine

    # ---- the mask --------------------------------------------------------------------------

    def fill(self, row: Int32Words) -> bool:
        """As ``Filter.fill``. FilterError if the engine gives up."""
        if self._filled is not None:
            row[:] = self._filled[: len(row)]
            return True
        if row is not self._row:
            self._look_at(row)
        self.matcher.unsafe_compute_mask_ptr(self._pointer, self._bytes)
        if self.matcher.is_error():
            self._recover()
            self.matcher.unsafe_compute_mask_ptr(self._pointer, self._bytes)
            if self.matcher.is_error():
                raise FilterError(f"{self._grammar.name}: {_reason(self.matcher)}")
        if self._buffer is not row:
            row[:] = self._buffer[: len(row)]
        return True

    def _look_at(self, row: Int32Words) -> None:
        """Remember where the words of ``row`` lie: callers use one row again and again."""
        whole = len(row) == self._engine.words and row.flags.c_contiguous
        self._buffer = row if whole else np.empty(self._engine.words, dtype=np.int32)
        self._pointer, self._bytes = self._buffer.ctypes.data, self._buffer.nbytes
        self._row = row

    def take_mask(self, row: Int32Words) -> None:
        """Take ``row``, computed elsewhere for this state, as what ``fill`` would write."""
        self._filled = row

    # ---- forwards and back -----------------------------------------------------------------

    def advance(self, token: Token) -> None:
        """As ``Filter.advance``."""
        if not 0 <= token < self._limit or token in self._eos:
            raise FilterError(f"{self._grammar.name}: token {token} is not an ordinary token")
        if self.matcher.try_consume_tokens([token]) != 1 and not self._retried(token):
            piece = self._engine.vocabulary.piece(token)
            raise FilterError(f"{self._grammar.name} does not allow token {token} ({piece!r}) here")
        self._fed.append(token)
        self._filled = None

    def _retried(self, token: Token) -> bool:
        if not self.matcher.is_error():
            return False
        self._recover()
        return self.matcher.try_consume_tokens([token]) == 1

    def rewind(self, to: int) -> None:
        """Back to the state after the first ``to`` tokens."""
        count = len(self._fed) - to
        if count <= 0:
            return
        if not self.matcher.rollback(count):
            # max_tokens= and stop= of a caller's grammar forbid it, and so does an error.
            fresh = self._engine.matcher(self._grammar)
            self.matcher = self._replayed(fresh, self._fed[:to])
        del self._fed[to:]
        self._filled = None

    def reset(self) -> None:
        """As ``Filter.reset``."""
        self.rewind(0)

    def fork(self) -> GrammarFilter:
        """An independent copy."""
        twin = object.__new__(GrammarFilter)
        twin._grammar = self._grammar
        twin._engine = self._engine
        twin._vocab_size = self._vocab_size
        twin._eos = self._eos
        twin._limit = self._limit
        twin._fed = self._fed.copy()
        twin._filled = self._filled
        twin._row = None
        twin.matcher = self.matcher.deep_copy()
        return twin

    def _recover(self) -> None:
        """Go on with a matcher of our own, after a shared one met a limit."""
        reason = _reason(self.matcher)
        alone = self._engine.compiled(self._grammar)
        self.matcher = self._replayed(alone, self._fed, reason)

    def _replayed(self, matcher: LLMatcher, tokens: Sequence[Token], reason: str = "") -> LLMatcher:
        if matcher.try_consume_tokens(list(tokens)) != len(tokens) or matcher.is_error():
            reason = _reason(matcher) or reason or "cannot be replayed"
            raise FilterError(f"{self._grammar.name}: {reason}")
        return matcher

    # ---- questions -------------------------------------------------------------------------

    def can_end(self) -> bool:
        """As ``Filter.can_end``."""
        return self.matcher.is_accepting()

    def forced(self) -> list[Token]:
        """Tokens that must come next, as the tokenizer would have them."""
        run = self.matcher.compute_ff_tokens()
        return run[: self._ordinary(run)]

    def validate(self, tokens: Sequence[Token]) -> int:
        """How many of ``tokens`` would be taken."""
        ordinary = self._ordinary(tokens)
        return self.matcher.validate_tokens(list(tokens[:ordinary])) if ordinary else 0

    def _ordinary(self, tokens: Sequence[Token]) -> int:
        """How many of the first tokens are ids that the matcher may be shown."""
        for count, token in enumerate(tokens[:_RUN]):
            if not 0 <= token < self._limit or token in self._eos:
                return count
        return min(len(tokens), _RUN)


def _reason(matcher: LLMatcher) -> str:
    """The engine's reason without its dump of states."""
    if matcher.stop_reason() in ("NoExtension", "NoExtensionBias"):
        return "no text satisfies it"
    reason = matcher.get_error()
    for mark in ("<non-verbose/>", "<state>"):
        reason = reason.partition(mark)[0]
    return reason.strip()


# ---- the tokenizer and what is compiled for it ---------------------------------------------


class _Tokens:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, size: int, eos: Token) -> None:
        self.eos_token_id = eos
        self.special_token_ids = sorted(vocabulary.special)
        holes = [b""] * (size - vocabulary.size)
        self.tokens = [*vocabulary.pieces, *holes]
        self._tokenized = lru_cache(_TEXTS)(lambda text: _spelled(vocabulary, text))

    def __call__(self, text: str) -> list[Token]:
        """Tokens of text in the middle of a sequence.

        Never special ones: llguidance would force them where a grammar has their text as a
        literal, and then refuse them.
        """
        return list(self._tokenized(text))


def _spelled(vocabulary: Vocabulary, text: str) -> tuple[Token, ...]:
    try:
        return tuple(vocabulary.continue_with(text.encode()))
    except PromptError:
        return ()


@dataclass(slots=True)
class _Kept:
    """A compiled grammar that is only ever copied."""

    matcher: LLMatcher
    copies: int = 0


class Engine:
    """One vocabulary as llguidance sees it, and the grammars compiled for it."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self.vocabulary = vocabulary
        eos = sorted(vocabulary.eos)
        size = max(vocab_size, vocabulary.size, *(token + 1 for token in eos), 0)
        if not eos:  # it wants one: an id that nothing else has
            eos = [size]
            size += 1
        self.size = size
        self.words = word_count(size)
        # The size given here is ignored for tokenizers of this kind; the pieces are padded.
        tokens = _Tokens(vocabulary, size, eos[0])
        self._tokenizer = LLTokenizer(tokens, n_vocab=size, eos_token=eos)  # type: ignore[arg-type]
        assert self._tokenizer.vocab_size == size
        self._kept: Recent[str, _Kept] = Recent(_KEPT)
        self._executors: Recent[int, LLExecutor] = Recent(1)  # its own default is 80 % of the cores

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, vocab_size: int) -> Engine:
        """The engine of a tokenizer, made once for each width of the logits."""
        vocabulary = Vocabulary.of(tokenizer)
        size = max(vocab_size, vocabulary.size)
        return vocabulary.derived(("llguidance", size), lambda: cls(vocabulary, size))

    def executor(self, threads: int | None = None) -> LLExecutor:
        """Threads for many masks at once; by default one for each core."""
        count = threads or os.cpu_count() or 1
        return self._executors.get(count, lambda: LLExecutor(count))

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """A matcher for a grammar at its start. GrammarError if it cannot be met."""
        kept = self._kept.get(grammar.text, lambda: _Kept(self.compiled(grammar)))
        kept.copies += 1
        if kept.copies == _COPIES:
            self._kept.forget(grammar.text)
        return kept.matcher.deep_copy()

    def compiled(self, grammar: Grammar) -> LLMatcher:
        """A matcher that shares nothing. GrammarError if the grammar cannot be met."""
        matcher = LLMatcher(self._tokenizer, grammar.text, log_level=0, limits=_LIMITS)
        self._check(matcher, grammar)
        trial = matcher.deep_copy()
        run = trial.compute_ff_tokens()
        if run:  # a grammar may begin with text that leads nowhere
            trial.try_consume_tokens(run[:_RUN])
            self._check(trial, grammar)
        return matcher

    def _check(self, matcher: LLMatcher, grammar: Grammar) -> None:
        if not matcher.is_error():
            row = np.zeros(self.words, dtype=np.int32)
            matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if row.any() and not matcher.is_error():
                return
        raise GrammarError(f"{grammar.name}: {_reason(matcher) or 'no text satisfies it'}")
