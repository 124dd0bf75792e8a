"""Walking a constraint back and forth, symbol by symbol, to see where its paths lead.

There are two kinds of walks: on llguidance's matchers, if the constraint consists of grammars,
and otherwise on a copy of the constraint.

Invariant: a walk that is back at its beginning has left the constraint unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from ..errors import FilterError, StateError
from ..tokens import Token, Vocabulary, in_common
from .bytewise import ByteVocabulary
from .constraint import Constraint
from .matcher import GrammarFilter
from .protocol import Filter, Int32Words

_ORDER = b"}]),:;>0ntf\"'`a.-@/T+_(=*!?#$%&~^|A"  # closing signs, shortest values, other signs
_LATE = b"\\[<{"  # opening signs


class Alphabet:
    """The symbols of a vocabulary in the order in which to try them: added tokens, then bytes.

    A vocabulary of bytes also has probes, which masks show but nobody tries.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        late = _LATE + bytes([*range(128, 256), *range(32), 127, 32])
        rest = bytes(byte for byte in range(256) if byte not in _ORDER + late)
        ordered = [vocabulary.token_of(bytes([byte])) for byte in _ORDER + rest + late]
        singles = [token for token in ordered if token is not None]
        special = (vocabulary.added | vocabulary.special) - vocabulary.eos
        self.symbols = [*sorted(t for t in special if vocabulary.piece(t)), *singles]
        probes = vocabulary.probes if isinstance(vocabulary, ByteVocabulary) else []
        shown = np.array([*self.symbols, *probes], dtype=np.int64)
        self.words, self.bits = shown >> 5, (shown & 31).astype(np.int32)
        self.pieces = vocabulary.pieces
        self.kinds = {token: _kind(self.pieces[token][0]) for token in singles}

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Alphabet:
        return vocabulary.derived("alphabet", lambda: cls(vocabulary))

    def is_plain(self, symbol: Token) -> bool:
        """Whether a symbol can stand alone in a JSON string: not ``\\``, and ASCII."""
        return self.kinds.get(symbol) not in (-1, 92)

    def shown(self, mask: Int32Words) -> bytes:
        """One byte for each symbol and each probe: whether a mask allows it."""
        flags: npt.NDArray[np.uint8] = ((mask[self.words] >> self.bits) & 1).astype(np.uint8)
        return flags.tobytes()


def _kind(byte: int) -> int:
    """The kind of a byte: letters are alike in patterns, and so are digits, and non-ASCII bytes."""
    sign = chr(byte)
    return -1 if byte >= 128 else -2 if sign.isdigit() else -3 if sign.isalpha() else byte


class _MatcherWalk:
    """A walk on copies of matchers, which take a fifth of the time that the constraint takes.

    It moves along paths from its beginning; ``steps`` counts the work.
    """

    def __init__(self, grammars: Sequence[GrammarFilter], alphabet: Alphabet) -> None:
        self.path: list[Token] = []
        self.steps = 0
        self._origins = [grammar.matcher.deep_copy() for grammar in grammars]
        self._matchers = [origin.deep_copy() for origin in self._origins]
        self._shown = alphabet.shown
        self._row = np.zeros(grammars[0].engine.words, dtype=np.int32)
        self._spare = np.zeros_like(self._row)

    def forth(self, run: Sequence[Token]) -> None:
        """Goes on by ``run``. FilterError if it is not allowed; StateError if the walk is lost."""
        tokens = list(run)
        for done, matcher in enumerate(self._matchers):
            taken = matcher.try_consume_tokens(tokens)
            self.steps += 1 + taken // 8
            if taken < len(tokens):
                for earlier in self._matchers[:done]:
                    earlier.rollback(len(tokens))
                if matcher.is_error():
                    self._recover()
                else:
                    matcher.rollback(taken)
                raise FilterError("not allowed")
        self.path += tokens

    def back(self, length: int) -> None:
        """Goes back to the first ``length`` symbols of the path."""
        count = len(self.path) - length
        if count > 0:
            back = [matcher.rollback(count) for matcher in self._matchers]
            if not all(back):
                self._recover(length)
            del self.path[length:]

    def _recover(self, length: int | None = None) -> None:
        """Makes new copies, because errors are permanent."""
        path = self.path[:length]
        self._matchers = [origin.deep_copy() for origin in self._origins]
        self.steps += len(path)
        for matcher in self._matchers:
            if matcher.try_consume_tokens(path) < len(path):
                raise StateError("the matcher cannot be brought back")

    def look(self) -> bytes:
        """What is allowed, as ``Alphabet.shown``. FilterError if nothing is."""
        row = self._row
        self._mask(self._matchers[0], row)
        for matcher in self._matchers[1:]:
            self._mask(matcher, self._spare)
            np.bitwise_and(row, self._spare, out=row)
        return self._shown(row)

    def _mask(self, matcher: LLMatcher, row: Int32Words) -> None:
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if matcher.is_error():
            self._recover()
            raise FilterError("nothing may follow")

    def can_end(self) -> bool:
        return all(matcher.is_accepting() for matcher in self._matchers)

    def forced(self) -> Sequence[Token]:
        """What must come next, as far as it is known."""
        return self._matchers[0].compute_ff_tokens() if len(self._matchers) == 1 else ()


class _ConstraintWalk:
    """A walk on a copy of the constraint."""

    def __init__(self, at: Constraint, alphabet: Alphabet) -> None:
        self.path: list[Token] = []
        self.steps = 0
        self._at = at
        self._start = len(at)
        self._shown = alphabet.shown
        self._all = bytes([1]) * len(alphabet.words)

    def forth(self, run: Sequence[Token]) -> None:
        for token in run:
            self.steps += 6  # it takes that much longer
            self._at.advance(token)
            self.path.append(token)

    def back(self, length: int) -> None:
        if length < len(self.path):
            self._at.rewind(self._start + length)
            del self.path[length:]

    def look(self) -> bytes:
        mask = self._at.mask()
        return self._all if mask is None else self._shown(mask)

    def can_end(self) -> bool:
        return self._at.can_end()

    def forced(self) -> Sequence[Token]:
        return ()


Walk: TypeAlias = _MatcherWalk | _ConstraintWalk


def go(walk: Walk, path: Sequence[Token]) -> None:
    """Walks to the end of a path."""
    common = in_common(walk.path, list(path))
    walk.back(common)
    if common < len(path):
        walk.forth(path[common:])


def walk_from(constraint: Constraint) -> Walk:
    """A walk from where a constraint stands.

    If it cannot be copied, the walk is on the constraint itself, so walk back in the end.
    """
    grammars = [_grammar(part) for part in constraint.parts]
    running = [grammar for grammar in grammars if grammar is not None]
    if len(running) == len(grammars):
        return _MatcherWalk(running, Alphabet.of(constraint.vocabulary))
    try:
        at = constraint.fork()
    except StateError:
        at = constraint
    return _ConstraintWalk(at, Alphabet.of(constraint.vocabulary))


def _grammar(filter: Filter) -> GrammarFilter | None:
    """The grammar that alone decides for a filter from here on, if there is one."""
    while not isinstance(filter, GrammarFilter):
        asked: Sequence[Filter] = getattr(filter, "asked", tuple)()
        if len(asked) != 1:
            return None
        filter = asked[0]
    return filter
