"""The filters of a constraint, bound to single bytes: there, looking far ahead is cheap.

A place in a grammar that allows tens of thousands of tokens allows a hundred bytes at most,
and a step, mask included, takes a few µs. Besides bytes there are a few ``probes``: short texts
in which patterns of identifiers, dates or addresses often end. They are never fed. Two places
may allow the same bytes, for example before and after the dot of an address, and still differ
in what they allow two or three bytes later; with probes, the mask shows that.

Invariant: added tokens keep their ids, so that a filter that names tokens means the same ones.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import count

from ..errors import GrammarError
from ..tokens import Token, Vocabulary
from ..tokens.pieces import Pieces
from .constraint import Constraint
from .protocol import is_by_bytes

_PROBES = (
    *(sign * times + b'"' for sign in (b"n", b"0", b"A") for times in range(1, 5)),
    *(bytes([sign]) + rest for sign in b".-:/@T+ " for rest in (b"n", b"0", b'nn"', b'00"')),
)


class ByteVocabulary(Vocabulary):
    """One token for each byte, the added tokens of ``vocabulary``, and the probes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        kept = vocabulary.added | vocabulary.special
        free = (token for token in count() if token not in kept)
        pieces = {token: vocabulary.piece(token) for token in kept}
        self._bytes = [next(free) for _ in range(256)]
        pieces.update((token, bytes([byte])) for byte, token in enumerate(self._bytes))
        self.probes = [next(free) for _ in _PROBES]
        pieces.update(zip(self.probes, _PROBES, strict=True))
        self._whole = vocabulary
        self.pieces = tuple([pieces.get(token, b"") for token in range(1 + max(pieces))])
        self.size = len(self.pieces)
        self.eos, self.special, self.added = vocabulary.eos, vocabulary.special, vocabulary.added
        self.strips_space = strips = vocabulary.strips_space
        self._pieces = Pieces(self.pieces, lambda _, piece: piece, strips, frozenset())
        self._derived = {}
        self._lock = threading.RLock()

    @classmethod
    def beside(cls, vocabulary: Vocabulary) -> ByteVocabulary:
        """The byte vocabulary of a vocabulary, made once."""
        return vocabulary.derived("bytes", lambda: cls(vocabulary))

    def spelled(self, tokens: Iterable[Token]) -> list[Token]:
        """Tokens of the whole vocabulary, spelled in this one."""
        spelled: list[Token] = []
        for token in tokens:
            if token in self.added or token in self.special:
                spelled.append(token)
            else:
                spelled += map(self._bytes.__getitem__, self._whole.piece(token))
        return spelled

    def continue_with(self, data: bytes) -> list[Token]:
        """Each byte by itself."""
        return list(map(self._bytes.__getitem__, data))


def bound_to_bytes(constraint: Constraint) -> Constraint | None:
    """A constraint's filters over bytes, at their start; None if one of them is not ``by_bytes``.

    This compiles the filters unless that was done before, so call it while rows are prepared.
    """
    if not all(map(is_by_bytes, constraint.filters)):
        return None
    vocabulary = ByteVocabulary.beside(constraint.vocabulary)
    strips = constraint.strips_space
    try:
        return Constraint(constraint.filters, vocabulary, vocabulary.size, strips_space=strips)
    except GrammarError:
        return None
