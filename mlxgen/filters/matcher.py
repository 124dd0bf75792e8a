"""GrammarFilter: a running grammar, with everything that llguidance does natively.

Invariant: a matcher with an error, or one whose shared automaton is spent, is replaced before
it is asked anything. Errors of llguidance are permanent, and the mask is then end-of-sequence
only, which looks like a finished text. So ``is_error`` is checked after every call that may
fail, the range of ids is checked before llguidance sees them, end tokens are never fed, and
tokens go in by ``try_consume_tokens``, which refuses without harm. How much the automaton may
grow between two masks has a limit too, so while a long text goes in without masks, masks are
computed that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher

from ..errors import FilterError
from ..forks import forked
from ..tokens import Token
from .compiled import Grammar, GrammarEngine, has_met_shared_limit, is_dead_end, reason_of
from .protocol import Int32Words, Objection

_UNMASKED = 16  # tokens fed before a mask is computed; a large schema allows several hundred
_RUN = 1024  # tokens looked at in one call; a grammar may force text without end


class GrammarFilter:
    """The running filter of a grammar: rewinds, forks, forces and validates natively."""

    def __init__(self, grammar: Grammar, engine: GrammarEngine, vocab_size: int) -> None:
        self.engine = engine  # all of its masks have the same width
        self._check = grammar.check
        self._eos = engine.vocabulary.eos
        self._limit = min(vocab_size, engine.vocabulary.size)
        self._fed: list[Token] = []
        self._unmasked = 0  # tokens fed or tried since the last mask
        self._is_stale = False  # whether the matcher may still keep a mask of what was taken back
        self._compiled = engine.compiled(grammar)
        self._matcher = self._compiled.matcher()

    def _renew(self) -> None:
        """Replaces a matcher whose automaton is spent. Cheap if there is nothing to do."""
        if self._compiled.spent:
            self._rebuild(self._fed)

    def _rebuild(self, tokens: Sequence[Token]) -> None:
        for _ in range(2):
            if self._compiled.spent:
                self._compiled = self.engine.compiled(self._compiled.grammar)
            matcher = self._compiled.matcher()
            if self._replayed(matcher, tokens):
                self._matcher, self._is_stale = matcher, False
                return
            if not self._compiled.proves_spent():
                break
        raise self._error(reason_of(matcher) or "the text so far cannot be replayed")

    def _replayed(self, matcher: LLMatcher, tokens: Sequence[Token]) -> bool:
        """Whether a new matcher took all of these tokens."""
        self._unmasked = min(len(tokens), _UNMASKED)
        for start in range(0, len(tokens), _UNMASKED):
            if start:
                self._compute_mask(matcher)
            chunk = list(tokens[start : start + _UNMASKED])
            if matcher.try_consume_tokens(chunk) < len(chunk) or matcher.is_error():
                return False
        return True

    def _feeding(self, count: int) -> None:
        """Prepares the automaton for ``count`` tokens that were added to ``_unmasked``."""
        self._renew()
        if self._unmasked > _UNMASKED:
            self._unmasked = count
            self._compute_mask(self._matcher)
            if self._matcher.is_error():
                self._rebuild(self._fed)

    def _mended(self) -> bool:
        """Whether a limit was met and the matcher replaced; if so, ask it again."""
        failed = self._matcher.is_error() and not is_dead_end(self._matcher)
        if failed and has_met_shared_limit(self._matcher):
            self._compiled.spent = True
        elif not failed and not self._compiled.proves_spent():
            return False
        self._rebuild(self._fed)
        return True

    def _given_up(self) -> FilterError | None:
        """The error of a matcher that failed again after it was mended; replaces the matcher."""
        if not self._matcher.is_error() or is_dead_end(self._matcher):
            return None
        error = self._error(reason_of(self._matcher))
        self._compiled.spent |= has_met_shared_limit(self._matcher)
        self._rebuild(self._fed)
        return error

    def _error(self, what: str) -> FilterError:
        return FilterError(f"{self._compiled.grammar.name}: {what}")

    # ---- the mask --------------------------------------------------------------------------

    def fill(self, row: Int32Words) -> bool:
        """As ``Filter.fill``. FilterError if the engine gives up."""
        self._renew()
        self._unmasked = 0
        whole = row
        if len(row) != self.engine.words or not row.flags.c_contiguous:
            whole = np.empty(self.engine.words, dtype=np.int32)
        self._compute_mask(self._matcher, whole)
        if self._is_stale:
            self._was_masked()
        if self._matcher.is_error():
            if self._mended():
                self._compute_mask(self._matcher, whole)
            if is_dead_end(self._matcher):
                whole[:] = 0
            elif error := self._given_up():
                raise error
        if whole is not row:
            row[:] = whole[: len(row)]
        return True

    def _compute_mask(self, matcher: LLMatcher, row: Int32Words | None = None) -> None:
        row = np.empty(self.engine.words, dtype=np.int32) if row is None else row
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)

    def _was_masked(self) -> None:
        """Notes that a mask was computed here, which replaces the one that the matcher keeps."""
        self._is_stale = bool(self._matcher.compute_ff_bytes())

    # ---- forwards and back -----------------------------------------------------------------

    def advance(self, token: Token) -> None:
        if not 0 <= token < self._limit or token in self._eos:
            raise self._error(f"expected an ordinary token, got {token}")
        if self._is_stale:
            self._compute_mask(self._matcher)
            self._was_masked()
        self._unmasked += 1
        if self._unmasked > _UNMASKED or self._compiled.spent:
            self._feeding(1)
        taken = self._matcher.try_consume_tokens([token])
        if not taken and self._mended():
            taken = self._matcher.try_consume_tokens([token])
        if not taken:
            piece = self.engine.vocabulary.piece(token)
            refusal = self._error(f"token {token} ({piece!r}) is not allowed here")
            raise self._given_up() or refusal
        self._fed.append(token)

    def rewind(self, to: int) -> None:
        count = len(self._fed) - to
        if count <= 0:
            return
        # max_tokens= in a caller's grammar prevents a rollback, and so does an error.
        if self._compiled.spent or not self._matcher.rollback(count):
            self._rebuild(self._fed[:to])
        else:
            self._is_stale = True
        del self._fed[to:]

    def reset(self) -> None:
        self.rewind(0)

    def fork(self) -> GrammarFilter:
        shared = ("engine", "_check", "_compiled")
        return forked(self, shared=shared, _matcher=self._matcher.deep_copy())

    # ---- the finished text -----------------------------------------------------------------

    @property
    def checks(self) -> bool:
        """Whether a finished text may not fit, so that it must not be delivered before its end."""
        return self._check is not None and bool(self._check.keywords)

    def unchecked(self) -> tuple[int, bool]:
        """All tokens then; it is checked at its end."""
        return len(self._fed) if self.checks else 0, False

    def objection(self) -> Objection | None:
        """What is wrong with the text, which may end here."""
        if self._check is None:
            return None
        pieces = self.engine.vocabulary.pieces
        text = b"".join(pieces[token] for token in self._fed).decode(errors="replace")
        reason = self._check.objection(text)
        if reason is None:
            return None
        return Objection(reason, len(self._fed), not self._check.lenient)

    # ---- questions -------------------------------------------------------------------------

    def can_end(self) -> bool:
        self._renew()
        return self._matcher.is_accepting()

    def forced(self) -> list[Token]:
        """Tokens that must come next, as the tokenizer would spell them."""
        self._renew()
        run = self._matcher.compute_ff_tokens()
        if self._matcher.is_error() and self._mended():
            run = self._matcher.compute_ff_tokens()
            if self._given_up():
                return []
        return run[: self._ordinary(run)] if run else run

    def validate(self, tokens: Sequence[Token]) -> int:
        ordinary = self._ordinary(tokens)
        if not ordinary:
            return 0
        self._unmasked += ordinary
        self._feeding(ordinary)
        asked = list(tokens[:ordinary])
        taken = self._matcher.validate_tokens(asked)
        if taken < ordinary and self._mended():
            taken = self._matcher.validate_tokens(asked)
            self._given_up()
        return taken

    def _ordinary(self, tokens: Sequence[Token]) -> int:
        """How many of the first tokens the matcher may see: ordinary ones, up to ``_RUN``."""
        for count, token in enumerate(tokens[:_RUN]):
            if not 0 <= token < self._limit or token in self._eos:
                return count
        return min(len(tokens), _RUN)
