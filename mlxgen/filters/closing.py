"""The shortest way from here to a valid end, for a budget that runs out inside a value.

Owns the search. Must never know a grammar: it asks a constraint what any caller may ask.

Grammars allow tens of thousands of tokens in a string, and an end may be dozens of tokens away,
so this is no exhaustive search. Three steps:

    dive     goes greedily, at each place by the first of a few tokens (closing signs first)
             that leads where the dive has not been often; what is forced is taken as it is
    respell  the text of the dive, as the tokenizer would spell it, which is mostly shorter
    widen    breadth first, for anything shorter than that, as far as the work allows: by all
             tokens where a state allows at most ``_NARROW``, else by a choice of them, and
             tokens of a wide state that lead to the same mask are taken for one

Invariant: a run that is returned was fed to a copy of the constraint, which could end after
it and not before. It is a shortest one if no state on the way was wide and the work sufficed.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import FilterError, OptionError, PromptError, StateError
from ..tokens import Token, TokenIds, Vocabulary
from .constraint import Constraint
from .protocol import Int32Words, allows, tokens_of

_NARROW = 64  # a state that allows more tokens is wide
_TRIED = 6  # tokens that a dive tries at one place
_OFTEN = 4  # times that a dive comes to the same mask before it tries another way
_CHOICE = 48  # tokens by which the search leaves a wide state


def shortest_end(
    constraint: Constraint, limit: int, *, enough: int = 0, work: int = 1024
) -> list[Token] | None:
    """A run of at most ``limit`` tokens after which the text may end; None if none was found.

    The run is near the shortest; one of at most ``enough`` tokens is taken as soon as it is
    found. ``work`` bounds the search: it feeds at most that many tokens to a copy of the
    constraint (one rewind and one mask at most for each), whatever the grammar. The
    constraint itself is left as it is.
    """
    if limit < 0:
        raise OptionError("limit", f"must be at least 0, not {limit}")
    if constraint.can_end():
        return []
    if limit == 0:
        return None
    search = _Search(constraint, work)
    try:
        best = search.dive(4 * limit + 16, work // 2)
        if best is not None:
            best = min(best, search.respelled(best) or best, key=len)
        if best is None or len(best) > max(enough, 1):
            shorter = search.widen(limit if best is None else min(limit, len(best) - 1))
            best = shorter or best
    finally:
        search.go(())
    return best if best is not None and len(best) <= limit else None


class _Search:
    """A copy of the constraint that walks along runs of tokens, and counts its steps."""

    def __init__(self, constraint: Constraint, work: int) -> None:
        try:
            self._at = constraint.fork()
        except StateError:  # a filter that cannot be copied is walked forth and back
            self._at = constraint
        self._start = len(self._at)
        self._path: list[Token] = []
        self._left = work
        self._table = _Table.of(constraint.vocabulary)

    # ---- walking ---------------------------------------------------------------------------

    def _step(self, token: Token) -> None:
        self._left -= 1
        self._at.advance(token)
        self._path.append(token)

    def _back(self, to: int) -> None:
        self._at.rewind(self._start + to)
        del self._path[to:]

    def go(self, path: Sequence[Token]) -> None:
        """Walk to where ``path`` leads, by way of what it has in common with where we are."""
        shared = 0
        for here, there in zip(self._path, path, strict=False):
            if here != there:
                break
            shared += 1
        self._back(shared)
        for token in path[shared:]:
            self._step(token)

    def _mask(self) -> tuple[bool, Int32Words | None]:
        """Whether this place leads on, and its mask."""
        try:
            return True, self._at.mask()
        except FilterError:
            return False, None

    # ---- the three steps -------------------------------------------------------------------

    def dive(self, most: int, work: int) -> list[Token] | None:
        """A run of at most ``most`` tokens that ends validly, found greedily."""
        self.go(())
        spared = self._left - work
        visits: Counter[bytes] = Counter()
        while not self._at.can_end():
            if len(self._path) >= most or self._left <= spared:
                return None
            run = self._at.forced() or self._at.hint()
            if run:
                for token in run[: most - len(self._path)]:
                    self._step(token)
                continue
            leads_on, mask = self._mask()
            if not leads_on:
                return None
            visits[_signature(mask)] += 1
            best = self._onwards(mask, visits)
            if best is None:
                return None
            self._step(best)
        return self._path.copy()

    def _onwards(self, mask: Int32Words | None, visits: Counter[bytes]) -> Token | None:
        """The first token of a few that leads where the dive has not been too often."""
        best: Token | None = None
        least = 0
        for token in self._table.tried(mask):
            self._step(token)
            ends = self._at.can_end()
            leads_on, after = (True, None) if ends else self._mask()
            self._back(len(self._path) - 1)
            if ends:
                return token
            if not leads_on:
                continue
            seen = visits[_signature(after)]
            if seen < _OFTEN:
                return token
            if best is None or seen < least:
                best, least = token, seen
        return best

    def respelled(self, path: Sequence[Token]) -> list[Token] | None:
        """The tokenizer's own tokens for the text of ``path``, if they end validly too."""
        vocabulary = self._at.vocabulary
        try:
            run = vocabulary.continue_with(b"".join(map(vocabulary.piece, path)))
        except PromptError:
            return None
        if len(run) >= len(path) or len(run) > self._left:
            return None
        self.go(())
        if self._at.validate(run) < len(run):
            return None
        for token in run:
            self._step(token)
            if self._at.can_end():
                return self._path.copy()
        return None

    def widen(self, most: int) -> list[Token] | None:
        """A shortest run of at most ``most`` tokens by the tokens of choice, breadth first."""
        frontier: list[tuple[Token, ...]] = [()]
        for _ in range(most):
            beyond: list[tuple[Token, ...]] = []
            parent: tuple[Token, ...] = ()
            seen: set[bytes] = set()  # masks behind the same parent, if it was wide
            for path in frontier:
                if len(path) + 1 > self._left:
                    return None
                self.go(path)
                leads_on, mask = self._mask()
                if not leads_on:
                    continue
                if path[:-1] != parent:
                    parent, seen = path[:-1], set()
                signature = _signature(mask)
                if signature in seen:
                    continue
                wide, tokens = self._table.choice(mask)
                if wide:
                    seen.add(signature)
                for token in tokens:
                    if self._left <= 0:
                        return None
                    self._step(token)
                    if self._at.can_end():
                        return self._path.copy()
                    self._back(len(path))
                    beyond.append((*path, token))
            frontier = beyond
        return None


# ---- which tokens to try -------------------------------------------------------------------


class _Table:
    """The tokens of a vocabulary that are worth trying, best first."""

    # One digit and one letter early, so that the first few are signs of different kinds.
    _SIGNS = "}])>\"'`,:;0a.[({<-+_/\\|=*!?#$%&@~^" + string.digits + string.ascii_letters

    def __init__(self, vocabulary: Vocabulary) -> None:
        signs = _known(vocabulary, (sign.encode() for sign in self._SIGNS))
        rest = _known(vocabulary, [bytes([byte]) for byte in (32, 10, *range(128, 256), 9, 13)])
        quotes = _known(vocabulary, (b'"', b"'", b"`"))
        pairs = _made_of(vocabulary, b"\"}])>'")
        fillers = _fillers(vocabulary)
        self._pieces = vocabulary.pieces
        self._text_signs = _known(vocabulary, (b"z", b"}"))
        self._structure = _ids([*signs, *rest], pairs)
        self._text = _ids([*quotes, *fillers, *signs, *rest], pairs)

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> _Table:
        return vocabulary.derived("closing", lambda: cls(vocabulary))

    def tried(self, mask: Int32Words | None) -> list[Token]:
        """A few allowed tokens, best first; blanks only where there is nothing else."""
        best = self._best(mask)
        if len(best) < _TRIED and mask is not None:
            best = list(dict.fromkeys([*best, *tokens_of(mask).tolist()]))
        inked = [token for token in best if not self._pieces[token].isspace()]
        return (inked or best)[:_TRIED]

    def choice(self, mask: Int32Words | None) -> tuple[bool, list[Token]]:
        """Whether a state is wide, and the tokens by which to leave it."""
        if mask is not None:
            narrow = tokens_of(mask)
            if len(narrow) <= _NARROW:
                return False, [int(token) for token in narrow]
        return True, self._best(mask)[:_CHOICE]

    def _best(self, mask: Int32Words | None) -> list[Token]:
        if mask is None:
            return [int(token) for token in self._text]
        free_text = all(allows(mask, token) for token in self._text_signs)
        table = self._text if free_text else self._structure
        table = table[table < len(mask) * 32]
        return [int(token) for token in table[(mask[table >> 5] >> (table & 31)) & 1 == 1]]


def _known(vocabulary: Vocabulary, texts: Iterable[bytes]) -> list[Token]:
    found = map(vocabulary.token_of, texts)
    return [token for token in found if token is not None]


def _made_of(vocabulary: Vocabulary, signs: bytes) -> list[Token]:
    """The tokens that consist of several of these signs, the shortest first."""
    found = [
        int(token)
        for sign in signs
        for token in vocabulary.starting_with(bytes([sign]))
        if len(vocabulary.piece(token)) > 1 and not vocabulary.piece(token).strip(signs)
    ]
    return sorted(found, key=lambda token: len(vocabulary.piece(token)))


def _fillers(vocabulary: Vocabulary) -> list[Token]:
    """Tokens to fill a string up to its least length: of spaces, the longest first."""
    found = [
        int(token)
        for token in vocabulary.starting_with(b" ")
        if not vocabulary.piece(token).strip(b" ")
    ]
    found.sort(key=lambda token: -len(vocabulary.piece(token)))
    wanted = (64, 32, 16, 8, 4, 2)
    return [
        next(token for token in found if len(vocabulary.piece(token)) <= length)
        for length in wanted
        if found and len(vocabulary.piece(found[-1])) <= length <= len(vocabulary.piece(found[0]))
    ]


def _ids(first: Sequence[Token], pairs: Sequence[Token]) -> TokenIds:
    """The most useful single signs, then pairs, then the other signs; each once."""
    order = dict.fromkeys([*first[:20], *pairs[:24], *first[20:]])
    return np.array(list(order), dtype=np.int32)


def _signature(mask: Int32Words | None) -> bytes:
    return b"" if mask is None else mask.tobytes()
