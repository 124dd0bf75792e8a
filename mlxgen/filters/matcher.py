"""GrammarFilter: a running grammar, with everything that llguidance does natively.

Invariant: a matcher with an error is replaced before it is asked anything. Errors of llguidance are
permanent, and the mask then allows the end of the sequence only, which looks like a finished text.
So ``is_error`` is checked after every call that may fail, the range of ids is checked before
llguidance sees them, end tokens are never fed, and tokens go in by ``try_consume_tokens``, which
refuses without harm. The growth of the automaton between two masks has a limit, too, so while a
long text goes in without masks, extra masks are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np

from ..errors import FilterError
from ..forks import forked
from ..tokens import Token
from .engine import (
    Grammar,
    GrammarEngine,
    has_met_shared_limit,
    is_dead_end,
    mask_of,
    reason_of,
)
from .protocol import Int32Words, Objection, Running

T = TypeVar("T")

_UNMASKED = 16  # tokens fed before a mask is computed; a large schema allows several hundred
_RUN = 1024  # tokens looked at in one call; a grammar may force endless text


class GrammarFilter(Running):
    """The running filter of a grammar: rewinds, forks, forces and validates natively."""

    def __init__(self, grammar: Grammar, engine: GrammarEngine, vocab_size: int) -> None:
        self.engine = engine  # all of its masks have the same width
        self._check = grammar.check
        self.checks = self._check is not None and bool(self._check.keywords)
        self._eos = engine.vocabulary.eos
        self._limit = min(vocab_size, engine.vocabulary.size)
        self._fed: list[Token] = []
        self._unmasked = 0  # tokens fed or tried since the last mask
        self._is_stale = False  # whether the matcher may still hold a mask from before a rewind
        self._grammar = grammar
        self._compiled = engine.compiled(grammar)
        self._matcher = self._compiled.deep_copy()

    # ---- what may come next ------------------------------------------------------------------

    def fill(self, row: Int32Words) -> bool:
        """As ``Filter.fill``. FilterError if the engine gives up."""
        mask = self._mask()
        if self._matcher.is_error():
            mask = self._again(self._mask, mask)
            if self._matcher.is_error():  # a dead end
                mask[:] = 0
        row[:] = mask[: len(row)]
        return True

    def _mask(self) -> Int32Words:
        mask = np.empty(self.engine.words, dtype=np.int32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._unmasked = 0
        if self._is_stale:  # this mask replaces the stale one, unless bytes are forced
            self._is_stale = bool(self._matcher.compute_ff_bytes())
        return mask

    def can_end(self) -> bool:
        return self._matcher.is_accepting()

    def forced(self) -> list[Token]:
        """Tokens that must come next, as the tokenizer would spell them."""
        run = self._matcher.compute_ff_tokens()
        if self._matcher.is_error():
            with suppress(FilterError):
                run = self._again(lambda: self._matcher.compute_ff_tokens(), [])
        return run[: self._ordinary(run)] if run else run

    def validate(self, tokens: Sequence[Token]) -> int:
        asked = list(tokens[: self._ordinary(tokens)])
        if not asked:
            return 0
        self._prepare(len(asked))
        taken = self._matcher.validate_tokens(asked)
        if not taken:
            with suppress(FilterError):
                taken = self._once_more(lambda: self._matcher.validate_tokens(asked))
        elif taken < len(asked):
            with suppress(FilterError):
                taken = self._again(lambda: self._matcher.validate_tokens(asked), taken)
        return taken

    def _ordinary(self, tokens: Sequence[Token]) -> int:
        """How many of the first tokens the matcher may see: ordinary ones, up to ``_RUN``."""
        for count, token in enumerate(tokens[:_RUN]):
            if not 0 <= token < self._limit or token in self._eos:
                return count
        return min(len(tokens), _RUN)

    # ---- forwards and back -------------------------------------------------------------------

    def advance(self, token: Token, /) -> None:
        if not 0 <= token < self._limit or token in self._eos:
            raise self._error(f"expected an ordinary token, got {token}")
        if self._is_stale or self._unmasked >= _UNMASKED:
            self._prepare(1)
        else:
            self._unmasked += 1
        asked = [token]
        if not self._matcher.try_consume_tokens(asked) and not self._once_more(
            lambda: self._matcher.try_consume_tokens(asked)
        ):
            piece = self.engine.vocabulary.piece(token)
            raise self._error(f"token {token} ({piece!r}) is not allowed here")
        self._fed.append(token)

    def rewind(self, to: int) -> None:
        count = len(self._fed) - to
        if count <= 0:
            return
        # max_tokens= in a caller's grammar prevents a rollback, and so does an error. A rollback
        # drops the bytes of each token's text, too few for a token that the grammar names.
        is_named = not self._grammar.named.isdisjoint(self._fed[to:])
        if is_named or not self._matcher.rollback(count):
            self._rebuild(self._fed[:to])
        else:
            self._is_stale = True
        del self._fed[to:]

    def fork(self) -> GrammarFilter:
        shared = ("engine", "_check", "_grammar", "_compiled")
        return forked(self, shared=shared, _matcher=self._matcher.deep_copy())

    # ---- limits ------------------------------------------------------------------------------

    def _prepare(self, count: int) -> None:
        """Computes a mask, if one is needed before ``count`` tokens are fed or tried."""
        if self._is_stale or self._unmasked + count > _UNMASKED:
            self._mask()
        self._unmasked += count

    def _again(self, ask: Callable[[], T], answer: T) -> T:
        """Asks a new matcher, if a limit kept this one from the right answer. FilterError if that
        meets the limit, too."""
        if not self._matcher.is_error() or is_dead_end(self._matcher):
            return answer
        self._rebuild(self._fed)
        answer = ask()
        if self._matcher.is_error() and not is_dead_end(self._matcher):
            error = self._error(reason_of(self._matcher))
            self._rebuild(self._fed)
            raise error
        return answer

    def _once_more(self, ask: Callable[[], int]) -> int:
        """What another matcher says, if this one refuses a token because the automaton that rows
        share has met its limit: it then refuses all, and says why only if a mask is wanted."""
        if not self._matcher.is_error():
            self._mask()
        return self._again(ask, 0)

    def _rebuild(self, tokens: Sequence[Token]) -> None:
        """Replaces the matcher by a new one that was fed these tokens."""
        for is_spent in (has_met_shared_limit(self._matcher), True):
            spent = self._compiled if is_spent else None
            self._compiled = self.engine.compiled(self._grammar, spent)
            matcher, fed = self._compiled.deep_copy(), 0
            while fed < len(tokens) and not matcher.is_error():
                if fed:
                    mask_of(matcher, self.engine.words)
                chunk = list(tokens[fed : fed + _UNMASKED])
                if matcher.try_consume_tokens(chunk) < len(chunk):
                    break
                fed += len(chunk)
            if fed == len(tokens) and not matcher.is_error():
                self._matcher, self._is_stale = matcher, False
                self._unmasked = min(fed, _UNMASKED)
                return
        raise self._error(reason_of(matcher) or "the text so far cannot be replayed")

    def _error(self, what: str) -> FilterError:
        return FilterError(f"{self._grammar.name}: {what}")

    # ---- the finished text -------------------------------------------------------------------

    def unchecked(self) -> tuple[int, bool]:
        """All tokens, if a text may violate the schema; it is checked at its end."""
        return len(self._fed) if self.checks else 0, False

    def objection(self, *, ends: bool = False) -> Objection | None:
        """What is wrong with the text, which may end here."""
        if self._check is None:
            return None
        pieces = self.engine.vocabulary.pieces
        text = b"".join(pieces[token] for token in self._fed).decode(errors="replace")
        reason = self._check.objection(text)
        if reason is None:
            return None
        return Objection(reason, len(self._fed), self.checks and not self._check.lenient)
